"""Packages of the three houses; everything else stands in pyproject.toml."""

from setuptools import find_packages, setup


def house(folder: str, name: str) -> list[str]:
    """Import names of the packages under `folder`, whose own import name is `name`."""
    return [name, *(f"{name}.{package}" for package in find_packages(folder))]


setup(
    packages=[
        *house("hipcli", "hipcli"),
        *house("engine", "hipcli.engine"),
        *house("kernels", "hipcli.kernels"),
    ],
    package_data={
        "hipcli": ["py.typed"],
        "hipcli.engine.evaluation": ["grammar.txt"],
        "hipcli.engine.models": ["calibrations/*.json"],
    },
    data_files=[("share/man/man1", ["docs/hip.1"])],
)
