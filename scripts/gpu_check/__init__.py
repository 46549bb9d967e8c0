"""What scripts/gpu-check is made of: Python's standard library alone, so that it runs on a bare GPU machine."""
