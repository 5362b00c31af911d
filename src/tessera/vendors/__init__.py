"""What differs between device families, as rows of data."""
