"""What every request passes: admission, bodies, answers and problems."""
