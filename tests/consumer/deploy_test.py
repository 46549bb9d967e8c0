"""Plays the platforms for which deploy/ has manifests: Docker Compose, Kubernetes with an Indexed
Job, a JobSet and a PyTorchJob, and Slurm without and with containers.

    python3 deploy_test.py TESSERA REPOSITORY

For each one a small part of the platform's contract is written down here, with its source: the
variables, names, volumes and signals that it gives a container. The commands of the manifest run
with it as two nodes on 127.0.0.1. They train, are stopped one after the other with the image's
STOPSIGNAL, and are started again: they must continue from their checkpoint. Exits with 77 if PyYAML
is missing.
"""

import os
import pathlib
import random
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import yaml
except ImportError:
    print("PyYAML is missing (Debian package python3-yaml)")
    sys.exit(77)

TESSERA = ROOT = DEPLOY = None  # set by main
KEY = "0123456789abcdef" * 4
LIMIT_S = 60
FINAL_CODES = [2, 3, 4, 5, 8]
LONGEST_SAVE_S = 300

# What the tests put first on the PATH. `getent` knows the names of the file HOSTS only; tini
# replaces itself.
TOOLS = {
    "tini": '#!/bin/sh\nshift\nexec "$@"\n',
    "getent": '#!/bin/sh\nawk -v name="$2" \'$2 == name {print $1, "STREAM", name}\' "$HOSTS"\n',
    # Slurm's commands: `scontrol show hostnames LIST` prints a name a line; `srun` starts one task
    # on each node, with the variables of its man page, sends them the signals that it gets, and
    # ends with the highest code.
    "scontrol": """#!/bin/sh
echo "$@" >>"$SCONTROL_LOG"
[ "$1" != show ] || printf "127.0.0.1\\n127.0.0.1\\n"
""",
    "srun": """#!/bin/bash
echo "$@" >>"$SRUN_LOG"
while [[ $1 == --* ]]; do shift; done
tasks=()
for node in 0 1; do
  SLURM_NODEID=$node SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2 "$@" &
  tasks+=($!)
done
trap 'kill -HUP "${tasks[@]}"' HUP
code=0
for task in "${tasks[@]}"; do
  wait "$task"; ended=$?
  while kill -0 "$task" 2>/dev/null; do wait "$task"; ended=$?; done
  ((ended > code)) && code=$ended
done
exit "$code"
""",
    # `apptainer exec [OPTIONS] IMAGE COMMAND`: the tests have no image, so the command runs here.
    "apptainer": '#!/bin/bash\nwhile [[ $1 != *.sif ]]; do shift; done\nshift\nexec "$@"\n',
}


def free_ports():
    """The first of two free neighbouring ports, in the range of those of train.sbatch."""
    while True:
        port = random.randrange(20000, 30000, 2)
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", port))
                two.bind(("127.0.0.1", port + 1))
                return port
            except OSError:
                continue


def documents(name):
    return [one for one in yaml.safe_load_all((DEPLOY / name).read_text(encoding="utf-8")) if one]


def stage_of(dockerfile):
    """[(instruction, its text)] of the last stage."""
    text = (DEPLOY / dockerfile).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    instructions = [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]
    last = max(index for index, (word, _) in enumerate(instructions) if word == "FROM")
    return instructions[last:]


def stop_signal():
    return getattr(signal, dict(stage_of("Dockerfile"))["STOPSIGNAL"])


class Case(unittest.TestCase):
    """A folder with the tools, a name service and a volume."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tessera-deploy-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name, text in TOOLS.items():
            (self.bin / name).write_text(text, encoding="utf-8")
            (self.bin / name).chmod(0o755)
        (self.bin / "tessera").symlink_to(TESSERA)
        (self.bin / "tessera-node").symlink_to(DEPLOY / "tessera-node")
        self.volume = self.folder / "training"
        self.volume.mkdir()
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("", encoding="utf-8")
        self.port = free_ports()
        self.running = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def names(self, *names):
        self.hosts.write_text("".join(f"127.0.0.1 {name}\n" for name in names), encoding="utf-8")

    def recipe(self, steps):
        """The recipe of deploy/ with a small model, other steps, and the volume in its place."""
        text = (DEPLOY / "recipe.yaml").read_text(encoding="utf-8")
        self.assertIn("resume: auto", text)
        for old, new in (
            ("n_layer: 6", "n_layer: 1"),
            ("n_embd: 256", "n_embd: 32"),
            ("n_head: 4", "n_head: 2"),
            ("seq_len: 256", "seq_len: 32"),
            ("batch_size: 8", "batch_size: 1"),
            ("steps: 200", f"steps: {steps}"),
            ("every: 10", "every: 1"),
            ("/training", str(self.volume)),
        ):
            self.assertIn(old, text)
            text = text.replace(old, new)
        return text

    def start(self, command, environment, log):
        """Starts a container's command; what it prints goes to the file `log`."""
        base = {
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOSTS": str(self.hosts),
            "OMP_NUM_THREADS": "1",
            "HOME": str(self.folder),
        }
        with open(self.folder / log, "w", encoding="utf-8") as output:
            process = subprocess.Popen(
                command,
                env={**base, **environment},
                cwd=self.folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def log(self, name):
        return (self.folder / name).read_text(encoding="utf-8")

    def logs(self):
        return "\n".join(
            f"--- {path.name}\n{path.read_text(encoding='utf-8')}"
            for path in sorted(self.folder.glob("*.log"))
        )

    def wait_for(self, what, happened):
        deadline = time.monotonic() + LIMIT_S
        while not happened():
            self.assertLess(time.monotonic(), deadline, f"{what} did not happen:\n{self.logs()}")
            time.sleep(0.05)

    def codes(self, processes):
        self.wait_for(
            "the end of all nodes", lambda: all(process.poll() is not None for process in processes)
        )
        return [process.returncode for process in processes]

    def saved_steps(self):
        return sorted(
            int(re.search(r"(\d+)$", path.parent.name).group(1))
            for path in self.volume.glob("checkpoints/**/manifest.json")
        )

    def play(self, start_all, stop, stopped_code):
        """Trains, stops and continues. start_all(recipe) starts all nodes and returns their
        processes."""
        processes = start_all(self.recipe(10**6))
        metrics = self.volume / "metrics.jsonl"
        self.wait_for(
            "a fifth step", lambda: metrics.exists() and metrics.read_text().count("\n") > 5
        )
        stop(processes)
        self.assertEqual(set(self.codes(processes)), {stopped_code}, self.logs())
        (step,) = self.saved_steps()
        self.assertGreaterEqual(step, 5)
        self.assertIn("over 2 ranks (shm+tcp)", self.logs())

        processes = start_all(self.recipe(step + 3))
        self.assertEqual(set(self.codes(processes)), {0}, self.logs())
        self.assertIn(step + 3, self.saved_steps())
        steps = [int(number) for number in re.findall(r'"step": ?(\d+)', metrics.read_text())]
        self.assertEqual(steps, list(range(1, step + 4)), "every step once")

    def stop_one_after_the_other(self, processes):
        for process in processes:  # process 1 of a container gets the signal, nothing else does
            process.send_signal(stop_signal())
            time.sleep(0.6)

    # Containers of Kubernetes.

    def container_of(self, pod):
        (container,) = pod["containers"]
        claims = {volume["name"] for volume in pod["volumes"]}
        self.assertEqual(claims, {mount["name"] for mount in container["volumeMounts"]})
        self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], LONGEST_SAVE_S)
        self.assertTrue(pod["securityContext"]["runAsNonRoot"])
        self.assertFalse(container["securityContext"]["allowPrivilegeEscalation"])
        return container

    def start_pod(self, pod, given, recipe, log):
        """Starts a pod's container, with the variables that its controller gives it. The kubelet
        replaces $(NAME) in the arguments by any variable of the container (Kubernetes: "Define
        dependent environment variables"), and leaves unknown names as they are."""
        container = self.container_of(pod)
        environment = {}
        for variable in container["env"]:
            source = variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                self.assertEqual(source["secretKeyRef"], {"name": "tessera-job-key", "key": "key"})
                environment[variable["name"]] = KEY
            elif "resourceFieldRef" in source:
                resource = source["resourceFieldRef"]["resource"].split(".")
                self.assertGreaterEqual(container["resources"][resource[0]][resource[1]], 1)
                environment[variable["name"]] = "1"
            else:
                environment[variable["name"]] = variable["value"]
        environment.update(given)
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        self.assertEqual(mounts["/training"], "training")
        place = self.folder / "etc"
        place.mkdir(exist_ok=True)
        (place / "recipe.yaml").write_text(recipe, encoding="utf-8")
        words = [
            re.sub(r"\$\((\w+)\)", lambda name: environment.get(name.group(1), name.group(0)), word)
            for word in container["args"]
        ]
        words = [word.replace("/etc/tessera", str(place)) for word in words]
        if "MASTER_PORT" not in given:
            words[words.index("--master-port") + 1] = str(self.port)
        return self.start([*container["command"], *words], environment, log)


class Kubernetes(Case):
    """The manifests in deploy/kubernetes."""

    def indexed(self, spec):
        """Checks a Job's specification and returns its pods'."""
        self.assertEqual(spec["completionMode"], "Indexed")
        self.assertEqual((spec["completions"], spec["parallelism"]), (2, 2))
        pod = spec["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")  # podFailurePolicy requires it
        first = spec["podFailurePolicy"]["rules"][0]
        self.assertEqual(
            (first["action"], first["onExitCodes"]["values"]), ("FailJob", FINAL_CODES)
        )
        for rule in spec["podFailurePolicy"]["rules"]:
            if "onExitCodes" in rule:
                self.assertEqual(
                    rule["onExitCodes"]["containerName"], self.container_of(pod)["name"]
                )
        return pod

    def play_indexed(self, pod, name_of_node_0):
        def start_all(recipe):
            # Node 1's container starts before node 0 has a name.
            self.names()
            processes = [
                self.start_pod(pod, {"JOB_COMPLETION_INDEX": str(index)}, recipe, f"{index}.log")
                for index in (1, 0)
            ]
            time.sleep(0.3)
            self.names(name_of_node_0)
            return processes

        self.play(start_all, self.stop_one_after_the_other, 128 + stop_signal())

    def test_job(self):
        # The hostname of an Indexed Job's pod is its name and index, and the Service's name is its
        # domain (Kubernetes: "Indexed Job with Pod-to-Pod communication").
        # batch.kubernetes.io/job-name is a label of its pods.
        service, job = documents("kubernetes/job.yaml")
        name = job["metadata"]["name"]
        self.assertEqual(service["spec"]["selector"], {"batch.kubernetes.io/job-name": name})
        self.assertEqual(service["spec"]["clusterIP"], "None")
        pod = self.indexed(job["spec"])
        self.assertEqual(pod["subdomain"], service["metadata"]["name"])
        ignored = [
            rule["onExitCodes"]["values"]
            for rule in job["spec"]["podFailurePolicy"]["rules"]
            if rule["action"] == "Ignore" and "onExitCodes" in rule
        ]
        self.assertIn(128 + stop_signal(), ignored[0])
        self.play_indexed(pod, f"{name}-0.{pod['subdomain']}")

    def test_jobset(self):
        # <jobset>-<replicated job>-<job index>-<pod index>.<subdomain>, by default the jobset's
        # name (JobSet: site/static/examples/simple/jobset-with-network.yaml).
        (jobset,) = documents("kubernetes/jobset.yaml")
        self.assertTrue(jobset["spec"]["network"]["enableDNSHostnames"])
        (job,) = jobset["spec"]["replicatedJobs"]
        self.assertEqual(job["replicas"], 1)
        (rule,) = jobset["spec"]["failurePolicy"]["rules"]
        self.assertEqual(
            rule, {"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
        )
        pod = self.indexed(job["template"]["spec"])
        self.assertEqual(job["template"]["spec"]["backoffLimit"], 0)
        name = jobset["metadata"]["name"]
        self.play_indexed(pod, f"{name}-{job['name']}-0-0.{name}")

    def test_pytorchjob(self):
        # Kubeflow Training Operator, pkg/controller.v1/pytorch/envvar.go and master.go, for the
        # container `pytorch`.
        (job,) = documents("kubernetes/pytorchjob.yaml")
        spec = job["spec"]["pytorchReplicaSpecs"]
        pods = [spec[kind]["template"]["spec"] for kind in ("Master", "Worker")]
        for kind in spec.values():
            self.assertEqual((kind["replicas"], kind["restartPolicy"]), (1, "ExitCode"))
            container = self.container_of(kind["template"]["spec"])
            self.assertEqual(container["name"], "pytorch")
            # The operator starts pods again that end with 128 or more
            # (pkg/util/train/train_util.go).
            lifted = [
                int(one["value"]) for one in container["env"] if one["name"] == "TESSERA_RETRY_CODE"
            ]
            self.assertTrue(lifted and 128 <= lifted[0] < 256)
        name = f"{job['metadata']['name']}-master-0"

        def start_all(recipe):
            self.names(name)
            given = {
                "MASTER_ADDR": name,
                "MASTER_PORT": str(self.port),
                "PET_MASTER_ADDR": name,
                "PET_MASTER_PORT": str(self.port),
                "WORLD_SIZE": "2",
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
                "PYTHONUNBUFFERED": "1",
            }
            return [
                self.start_pod(
                    pods[rank],
                    {**given, "RANK": str(rank), "PET_NODE_RANK": str(rank)},
                    recipe,
                    f"{rank}.log",
                )
                for rank in (0, 1)
            ]

        self.play(start_all, self.stop_one_after_the_other, 128 + stop_signal())

    def test_the_volume_is_the_claim_of_all_pods(self):
        (claim,) = documents("kubernetes/volume.yaml")
        self.assertEqual(claim["spec"]["accessModes"], ["ReadWriteMany"])
        for name in ("job", "jobset", "pytorchjob"):
            text = (DEPLOY / f"kubernetes/{name}.yaml").read_text(encoding="utf-8")
            self.assertIn(f"claimName: {claim['metadata']['name']}\n", text)


class Compose(Case):
    """deploy/compose.yaml."""

    def interpolated(self, value, variables):
        """${NAME:-default} and ${NAME:?message} of the Compose specification."""

        def replaced(match):
            name, kind, rest = match.groups()
            if name in variables:
                return variables[name]
            self.assertEqual(kind, "-", f"{name}: {rest}")
            return rest

        return re.sub(r"\$\{(\w+):([-?])([^}]*)\}", replaced, str(value))

    def test_compose(self):
        (project,) = documents("compose.yaml")
        services = project["services"]
        self.assertEqual(list(services), ["node0", "node1"])
        for service in services.values():
            self.assertTrue(
                (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
            )
            self.assertEqual(
                service["volumes"],
                ["./recipe.yaml:/etc/tessera/recipe.yaml:ro", "training:/training"],
            )
            self.assertTrue(service["restart"].startswith("on-failure"))
            self.assertEqual(service["stop_grace_period"], f"{LONGEST_SAVE_S // 60}m")

        def start_all(recipe):
            self.names(
                "node0", "node1"
            )  # the service's name is its address on the project's network
            (self.folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
            processes = []
            for name, service in services.items():
                words = [
                    word.replace("/etc/tessera", str(self.folder)) for word in service["command"]
                ]
                words[words.index("--master-port") + 1] = str(self.port)
                environment = {
                    key: self.interpolated(value, {"TESSERA_JOB_KEY": KEY})
                    for key, value in service["environment"].items()
                }
                processes.append(
                    self.start([*service["entrypoint"], *words], environment, f"{name}.log")
                )
            return processes

        self.play(start_all, self.stop_one_after_the_other, 128 + stop_signal())


class Slurm(Case):
    """deploy/slurm/train.sbatch."""

    def environment(self, **more):
        # sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; the script takes its port from the job's
        # number.
        return {
            "SLURM_JOB_ID": str((self.port - 20000) // 2),
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "node[0-1]",
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_SUBMIT_DIR": str(self.folder),
            "SRUN_LOG": str(self.folder / "srun"),
            "SCONTROL_LOG": str(self.folder / "scontrol"),
            **more,
        }

    def play_slurm(self, **more):
        def start_all(recipe):
            (self.folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
            return [
                self.start(
                    [str(DEPLOY / "slurm/train.sbatch"), "recipe.yaml"],
                    self.environment(**more),
                    "job.log",
                )
            ]

        def stop(processes):  # --signal=HUP@300 reaches the steps, not the script
            (script,) = processes
            children = (
                pathlib.Path(f"/proc/{script.pid}/task/{script.pid}/children").read_text().split()
            )
            for child in children:
                os.kill(int(child), signal.SIGHUP)

        self.assertIn(
            "#SBATCH --signal=HUP@300", (DEPLOY / "slurm/train.sbatch").read_text(encoding="utf-8")
        )
        self.play(start_all, stop, 128 + signal.SIGHUP)
        asked = self.log("scontrol").splitlines()
        self.assertEqual(
            asked.count(f"requeue {self.environment()['SLURM_JOB_ID']}"), 1, "after the stop only"
        )
        return self.log("srun")

    def test_without_containers(self):
        self.assertNotIn("--container", self.play_slurm())

    def test_pyxis(self):
        started = self.play_slurm(TESSERA_IMAGE="tessera.sqsh")
        self.assertIn(
            f"--container-image=tessera.sqsh --container-mounts={self.folder}:{self.folder} ",
            started,
        )

    def test_apptainer(self):
        started = self.play_slurm(TESSERA_IMAGE="tessera.sif", TESSERA_RUNTIME="apptainer")
        self.assertIn(
            f"apptainer exec --bind {self.folder}:{self.folder} --pwd {self.folder} tessera.sif sh",
            started,
        )

    def test_an_error_that_would_come_again_does_not_go_back_to_the_queue(self):
        (self.folder / "recipe.yaml").write_text(
            self.recipe(3).replace("warmup_steps", "warmup_step"), encoding="utf-8"
        )
        script = self.start(
            [str(DEPLOY / "slurm/train.sbatch"), "recipe.yaml"], self.environment(), "job.log"
        )
        self.assertEqual(self.codes([script]), [3], self.logs())
        self.assertNotIn("requeue", self.log("scontrol"))


class Node(Case):
    """deploy/tessera-node."""

    def node(self, *words, log="node.log", **environment):
        return self.start(["tessera-node", *words], environment, log)

    def alone(self, program, **environment):
        """The code of a job of one node whose rank is this program."""
        self.names("node0")
        return self.codes(
            [
                self.node(
                    "--nnodes",
                    "1",
                    "--node-rank",
                    "0",
                    "--master-addr",
                    "node0",
                    "--",
                    "sh",
                    "-c",
                    program,
                    **environment,
                )
            ]
        )[0]

    def test_codes_that_are_worth_another_attempt_are_lifted(self):
        self.assertEqual(self.alone("kill -9 $$"), 7)
        for program, code in (
            ("kill -9 $$", 135),
            ("exit 0", 0),
            *((f"exit {code}", code) for code in FINAL_CODES),
        ):
            with self.subTest(program):
                self.assertEqual(self.alone(program, TESSERA_RETRY_CODE="135"), code)

    def test_it_waits_for_the_name_of_node_0_and_says_so(self):
        waiting = self.node(
            "--nnodes", "2", "--node-rank", "1", "--master-addr", "node0", "--", "true"
        )
        self.wait_for("the message", lambda: "waits for node 0" in self.log("node.log"))
        self.assertIn("node0 has no address yet; it gives up in 59", self.log("node.log"))
        self.names("node0")
        time.sleep(1.5)
        self.assertIsNone(waiting.poll())  # the port is not open yet
        waiting.send_signal(signal.SIGHUP)
        self.assertEqual(self.codes([waiting]), [129])

    def test_node_0_does_not_take_the_address_of_its_predecessor(self):
        self.hosts.write_text("192.0.2.1 node0\n", encoding="utf-8")
        waiting = self.node(
            "--nnodes", "1", "--node-rank", "0", "--master-addr", "node0", "--", "true"
        )
        time.sleep(1.5)
        self.assertIsNone(waiting.poll())
        self.names("node0")
        self.assertEqual(self.codes([waiting]), [0])

    def test_missing_options_are_a_usage_error(self):
        self.assertEqual(self.codes([self.node("--nnodes", "2", "--", "true")]), [2])
        self.assertIn("give --node-rank R", self.log("node.log"))


class Images(unittest.TestCase):
    """What can be checked of the images without Docker; scripts/image-check executes the steps."""

    def test_the_containers_are_not_root_and_begin_with_tini(self):
        for name in ("Dockerfile", "Dockerfile.cuda"):
            with self.subTest(name):
                stage = stage_of(name)
                last = dict(stage)
                self.assertEqual(last["USER"], "10001:10001")
                self.assertEqual(last["ENTRYPOINT"], '["tini", "--", "tessera"]')
                self.assertEqual(last["STOPSIGNAL"], "SIGHUP")

    def test_the_images_copy_files_that_exist(self):
        for name in ("Dockerfile", "Dockerfile.cuda"):
            text = (DEPLOY / name).read_text(encoding="utf-8")
            copied = [
                word
                for line in re.findall(r"^COPY (?!--)(.*)$", text, re.M)
                for word in line.split()[:-1]
            ]
            self.assertIn("deploy/tessera-node", copied)
            for file in copied:
                self.assertTrue((ROOT / file).exists(), f"{name}: {file}")

    def test_final_codes_are_those_of_the_launcher(self):
        text = " ".join((ROOT / "docs/errors.md").read_text(encoding="utf-8").split())
        (listed,) = re.findall(r"do not restart after codes ([\d, and]+),", text)
        self.assertEqual([int(code) for code in re.findall(r"\d+", listed)], FINAL_CODES)
        for name in ("tessera-node", "slurm/train.sbatch"):
            self.assertIn("0 | 2 | 3 | 4 | 5 | 8)", (DEPLOY / name).read_text(encoding="utf-8"))
            self.assertTrue((DEPLOY / name).stat().st_mode & stat.S_IXOTH)


if __name__ == "__main__":
    TESSERA, ROOT = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    DEPLOY = ROOT / "deploy"
    if not shutil.which("bash"):
        sys.exit("bash is missing")
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
