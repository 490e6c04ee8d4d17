"""What every request passes: admission, bodies, dependencies, errors and answers."""
