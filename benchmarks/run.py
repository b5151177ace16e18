"""Measures this project, TFRA, tf.gather and PyTorch side by side; see docs/performance.md.

.venv/bin/python benchmarks/run.py --case lookup train --json out.json --png out.png
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile

from compare import report
from compare.cases import CASES, spec_of
from compare.machine import available_bytes, facts
from compare.peers import PEERS
from tqdm import tqdm

HERE = pathlib.Path(__file__).resolve().parent
SCALING = [name for name in CASES if name.startswith("scaling_")]
# At --quick nothing is larger than this; setups and points that then are equal run once.
QUICK = {"rows": 5000, "dim": 8, "keys": 20_000, "batch": 512, "examples": 2048, "vocabulary": 100}


class Process:
    """A peer at work, in a process of its own: compare/worker.py."""

    def __init__(self, peer, options):
        python = sys.executable
        if peer.environment:
            python = str(options.environments / peer.environment / "bin" / "python")
        self._patience = options.patience
        environment = {
            **os.environ,
            **peer.process_env,
            "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}",
            "COMPARE_TMP": str(options.tmp),
            "PYTHONDONTWRITEBYTECODE": "",  # modules are compiled once, as pip does
        }
        self._log = options.tmp / f"{peer.name}.log"
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [python, "-m", "compare.worker", peer.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )

    def send(self, command):
        with contextlib.suppress(BrokenPipeError):  # then `receive` says that the process ended
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def receive(self):
        if not select.select([self._process.stdout], [], [], self._patience)[0]:
            self._process.kill()
            return {"error": f"no answer in {self._patience} s"}
        line = self._process.stdout.readline()
        if not line:
            return {"error": f"ended with status {self._process.wait()}; see {self._log}"}
        return json.loads(line)

    def ask(self, command):
        self.send(command)
        return self.receive()

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


class Run:
    """Measures cases; `records` has what was measured, `versions` those of each peer.

    `left_out` has the setups that this machine is too small for, and why.
    """

    def __init__(self, peers, options):
        self._peers, self._options = peers, options
        self.records, self.versions, self.left_out = [], {}, []

    def case(self, case):
        setups = wanted(case.setups(), self._options.where)
        setups = quick(setups) if self._options.quick else setups
        for setup, points in tqdm(setups, case.name, unit="setup", leave=False):
            for peers in self._that_fit(setup):
                self._setup(case, setup, points, peers)

    def _that_fit(self, setup):
        """Groups of peers that take turns: all, or one by one where memory is too small for all."""
        if setup["threads"] > len(os.sched_getaffinity(0)):
            return self._leave_out("more threads than this machine's cores", setup)
        spec = spec_of({"rows": 0, "dim": 0, **setup})
        # Half as much again is what a table of a peer may take beyond the minimum.
        table = 1.5 * spec.rows * spec.row_bytes * spec.tables
        room = 0.8 * available_bytes()
        if table * sum(peer.is_table for peer in self._peers) < room:
            return [self._peers]
        if table < room:
            return [[peer] for peer in self._peers]
        return self._leave_out("too large for this machine's memory", setup)

    def _leave_out(self, why, setup):
        print(f"left out, {why}: {setup}", file=sys.stderr)
        self.left_out.append({"setup": setup, "why": why})
        return []

    def _setup(self, case, setup, points, peers):
        command = {
            "case": case.name,
            "setup": setup,
            "seconds": 0.02 if self._options.quick else 0.3,
        }
        with contextlib.ExitStack() as stack:
            processes, failed = {}, {}
            if not case.alone:
                for peer in peers:
                    processes[peer.name] = stack.enter_context(contextlib.closing(self._start(peer)))
                    processes[peer.name].send(command)
                for name, process in processes.items():
                    self._note(name, process.receive(), failed)
            for point in points:
                self._point(case, setup, point, peers, command, processes, dict(failed))

    def _point(self, case, setup, point, peers, command, processes, failed):
        samples = {peer.name: [] for peer in peers}
        for name, process in processes.items():
            if name not in failed and "ok" not in (answer := process.ask({"point": point})):
                failed[name] = answer
        rounds = self._options.rounds or (2 if self._options.quick else case.rounds)
        for _ in range(rounds):  # peers in turns, so that a busy moment of the machine meets all of them
            for peer in peers:
                name = peer.name
                if name in failed:
                    continue
                if case.alone:
                    answer = self._one_sample(peer, command, point, failed)
                else:
                    answer = processes[name].ask({"sample": True})
                if "ok" in answer:
                    samples[name].append(answer["ok"])
                else:
                    failed[name] = answer
        for name, taken in samples.items():
            record = {"case": case.name, "setup": setup, "point": point, "peer": name}
            self.records.append({**record, **(failed.get(name) or {"samples": taken})})

    def _one_sample(self, peer, command, point, failed):
        with contextlib.closing(self._start(peer)) as process:
            answer = process.ask(command)
            if self._note(peer.name, answer, failed):
                return answer
            answer = process.ask({"point": point})
            return process.ask({"sample": True}) if "ok" in answer else answer

    def _start(self, peer):
        return Process(peer, self._options)

    def _note(self, name, answer, failed):
        """Whether a setup failed."""
        if "ok" in answer:
            self.versions[name] = answer["ok"]
            return False
        failed[name] = answer
        return True


def wanted(setups, where):
    """The setups and points that agree with pairs (name, value), as far as they have that name."""

    def agrees(parameters):
        return all(str(parameters.get(name, value)) == value for name, value in where)

    found = [(setup, list(filter(agrees, points))) for setup, points in setups if agrees(setup)]
    return [(setup, points) for setup, points in found if points]


def quick(setups):
    """As QUICK says, and what is equal then together."""
    points_of = {}
    for setup, points in setups:
        merged = points_of.setdefault(tuple(_small(setup).items()), {})
        merged.update((tuple(point.items()), point) for point in map(_small, points))
    return [(dict(setup), list(points.values())) for setup, points in points_of.items()]


def _small(parameters):
    return {
        name: min(value, QUICK[name]) if name in QUICK else value for name, value in parameters.items()
    }


def found(names, options):
    """Peers of these names whose environment is there; says which are left out."""
    peers = []
    for name in names:
        peer = PEERS[name]
        if peer.environment and not (options.environments / peer.environment).is_dir():
            print(
                f"left out: {name}; no environment {options.environments / peer.environment}: "
                f"benchmarks/environments.sh {options.environments}",
                file=sys.stderr,
            )
        else:
            peers.append(peer)
    return peers


def pair(text):
    """(name, value) of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"got {text!r}, want NAME=VALUE")
    return name, value


def positive(kind):
    """A number of this kind above 0."""

    def number(text):
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"got {text}, want more than 0")
        return value

    return number


def file_to_write(text):
    path = pathlib.Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"got {text}, want a file in a folder that can be written to")
    return path


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    names = [name for name in CASES if name not in SCALING]
    add("--case", nargs="+", default=names, choices=[*CASES, "scaling"], help="default: all but scaling")
    add("--peers", nargs="+", default=list(PEERS), choices=list(PEERS), help="default: all")
    default = pathlib.Path(os.environ.get("BENCHMARK_ENVIRONMENTS", HERE.parent / "build/benchmarks"))
    text = "what environments.sh made [BENCHMARK_ENVIRONMENTS, build/benchmarks]"
    add("--environments", type=pathlib.Path, default=default, help=text)
    text = "only such setups and points, where they have that name: --where threads=1 dim=32 ids=zipf"
    add("--where", nargs="+", type=pair, default=[], metavar="NAME=VALUE", help=text)
    add("--rounds", type=positive(int), help="samples per point; default: the case's own")
    add("--json", type=file_to_write, metavar="PATH", help="write what was measured")
    add("--png", type=file_to_write, metavar="PATH", help="write plots")
    memory = pathlib.Path("/dev/shm")
    base = memory if memory.is_dir() else pathlib.Path(tempfile.gettempdir())
    text = "logs, checkpoints; default: a folder of the memory file system"
    add("--tmp", type=pathlib.Path, default=base / f"dynemb_benchmarks_{os.getuid()}", help=text)
    text = "for one answer of a peer"
    add("--patience", type=positive(float), default=900, metavar="SECONDS", help=text)
    add("--quick", action="store_true", help="these cases, small: do they run? figures mean nothing")
    options = parser.parse_args(arguments)
    options.case = [n for name in options.case for n in (SCALING if name == "scaling" else [name])]
    if options.png and options.png.suffix.lower() != ".png":
        parser.error(f"argument --png: got {options.png}, want a name that ends in .png")
    values = {}
    for setup, points in (each for name in options.case for each in CASES[name].setups()):
        for name, value in (item for part in (setup, *points) for item in part.items()):
            values.setdefault(name, {})[str(value)] = None
    for name, value in options.where:
        if value not in values.get(name, ()):
            want = f"{name}={'|'.join(values[name])}" if name in values else ", ".join(sorted(values))
            parser.error(f"argument --where: got {name}={value}, want one of {want}")
    for name in options.case:
        if not wanted(CASES[name].setups(), options.where):
            parser.error(f"argument --where: nothing of case {name} has these values; see --case")
    options.peers = found(options.peers, options)
    if not options.peers:
        parser.error("argument --peers: none of them is there")
    try:
        options.tmp.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        want = f"want a folder that can be written to ({error.strerror})"
        parser.error(f"argument --tmp: got {options.tmp}, {want}")
    return options


def main(arguments=None):
    options = parse(arguments)
    run = Run(options.peers, options)
    machine = facts()
    try:
        for name in options.case:
            run.case(CASES[name])
            report.show([r for r in run.records if r["case"] == name])
    finally:  # what there is so far, of a run that was stopped as well
        for peer in options.peers:  # they may be in memory
            (options.tmp / f"checkpoint_{peer.name}.npy").unlink(missing_ok=True)
            for kind in ("checkpoint", "served"):
                shutil.rmtree(options.tmp / f"{kind}_{peer.name}", ignore_errors=True)
        result = {
            "command": " ".join(sys.argv),
            "machine": {**machine, "load after": os.getloadavg()[0]},
            "versions": run.versions,
            "left out": run.left_out,
            "records": run.records,
        }
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")
    report.show_facts(result)
    if options.png:
        report.plot(run.records, options.png)


if __name__ == "__main__":
    main()
