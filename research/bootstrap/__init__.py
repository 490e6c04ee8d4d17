"""The tables of Cannistraci et al. 2023 on bootstrapped anchors, measured on real data."""
