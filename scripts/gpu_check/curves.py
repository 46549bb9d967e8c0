"""One recipe on the CPU and on the GPU."""
import os
import tempfile

from gpu_check import recipe
from gpu_check.check import FAILED, PASSED

STEPS, EMULATED_STEPS = 100, 2
TOLERANCE = 1e-3  # relative


def curves(check):
    """Steps of one recipe on the CPU and on the GPU must have the same losses."""
    steps = EMULATED_STEPS if check.installation.emulated else STEPS
    program = check.installation.program("tessera")
    losses = []
    with tempfile.TemporaryDirectory() as folder:
        for device in ("cuda", "cpu"):
            place = os.path.join(folder, device)
            command = [program, "train", recipe.write(place, steps, check.installation.emulated), "--device", device]
            done = check.command(f"{steps} steps on {device}", command, 60)
            if done is None or done.status != 0:
                return ""
            losses.append(recipe.losses(place))
    if len(losses[0]) != steps or len(losses[1]) != steps:
        check.row("losses", FAILED, f"{[len(curve) for curve in losses]} losses of {steps} steps")
        return ""
    largest = max(abs(gpu - cpu) / abs(cpu) for gpu, cpu in zip(*losses))
    note = f"largest relative difference {largest:.1e} over {steps} steps"
    check.row("losses", PASSED if largest <= TOLERANCE else FAILED, note, largest=largest)
    return note
