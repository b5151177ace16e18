"""Adds to a bill of materials what is in the op library and is no Python package, and says whose it is.

    linked_parts.py tf_dynemb/_build_info.py < BILL > BILL

A bill is JSON of CycloneDX, with a component `tf_dynemb`. NOTICE says the same in words. Versions are
said where the build knows them: the headers are those that TensorFlow brings.
"""

import json
import pathlib
import sys
import urllib.parse

IN_TENSORFLOW = "Its headers, as TensorFlow brings them, compiled into _tf_dynemb_ops.so."
HEADERS = {
    "Eigen": "MPL-2.0",
    "Abseil": "Apache-2.0",
    "Protocol Buffers": "BSD-3-Clause",
    "ml_dtypes": "Apache-2.0",
    "libcurl": "curl",
}
CUDA_EULA = {
    "name": "NVIDIA CUDA Toolkit End User License Agreement",
    "url": "https://docs.nvidia.com/cuda/eula/index.html",
}


def linked_parts(built):
    """Returns the components of an op library with that build information."""
    parts = [
        {"name": name, "description": IN_TENSORFLOW, "licenses": [{"license": {"id": license_id}}]}
        for name, license_id in HEADERS.items()
    ]
    if built["CUDA_VERSION"]:
        parts += [
            {
                "name": "CUDA runtime",
                "version": built["CUDA_VERSION"],
                "supplier": {"name": "NVIDIA"},
                "description": "Linked statically into _tf_dynemb_ops.so.",
                "licenses": [{"license": CUDA_EULA}],
            },
            {
                "name": "CCCL",
                "supplier": {"name": "NVIDIA"},
                "description": "Its headers, as CUDA brings them, compiled into _tf_dynemb_ops.so.",
                "licenses": [{"expression": "Apache-2.0 WITH LLVM-exception"}],
            },
        ]
    return [{"type": "library", "bom-ref": f"linked:{part['name']}", **part} for part in parts]


def main():
    """Reads the bill from standard input, and writes it with these parts."""
    bill, built = json.load(sys.stdin), {}
    exec(pathlib.Path(sys.argv[1]).read_text(), built)
    parts = linked_parts(built)
    bill["components"] += parts
    package = next(one for one in bill["components"] if one["name"] == "tf_dynemb")
    bill["components"].remove(package)
    package["purl"] = f"pkg:pypi/tf-dynemb@{urllib.parse.quote(package['version'])}"
    bill["metadata"]["component"] = package  # which all of it is about
    needs = next(one for one in bill["dependencies"] if one["ref"] == package["bom-ref"])
    needs["dependsOn"] = sorted([*needs.get("dependsOn", ()), *(part["bom-ref"] for part in parts)])
    bill["dependencies"] += [{"ref": part["bom-ref"]} for part in parts]
    json.dump(bill, sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
