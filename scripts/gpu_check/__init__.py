"""The parts of scripts/gpu-check. They use only Python's standard library, so that they run on a bare GPU machine."""
