"""Checks the versions of Python, JAX and the other packages. It only reads metadata. No package is imported."""

import operator
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import jaxpp
from jaxpp._versions import TESTED, TRIED
from jaxpp.doctor.finding import NOTE, PROBLEM, Finding

_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
    "~=": operator.ge,
}
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(\[(?P<extras>[^]]*)\])?\s*\(?(?P<versions>[^;()]*)\)?\s*(;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


class _Requirement(NamedTuple):
    """A package that another package needs.

    Attributes:
        name: the package.
        versions: the versions that will do, such as `>=0.12.8,<1`.
        extras: the needed extras of the package.
        extra: the extra of the other package that needs this package; "" if the other package always needs it.
    """

    name: str
    versions: str
    extras: frozenset[str]
    extra: str


def check_python() -> Iterator[Finding]:
    """Yields the version of Python."""
    found = platform.python_version()
    newest = max(TESTED.values(), key=_numbers)
    if _numbers(found)[:2] > _numbers(newest):
        yield Finding("python", f"{found} is newer than {newest}, the newest that was tested", NOTE, f"take {newest}")
    else:
        yield Finding("python", found)


def check_jaxpp() -> Iterator[Finding]:
    """Yields the version of jaxpp and its place, and the packages that it needs and lacks."""
    place = Path(str(jaxpp.__file__)).parent
    try:
        needed = [each for each in _requirements("jaxpp") if not each.extra]
    except metadata.PackageNotFoundError:
        found = f"{jaxpp.__version__} in {place}, which pip did not install"
        yield Finding("jaxpp", found, NOTE, "pip install PATH, with the path of the folder that has pyproject.toml")
        return
    yield Finding("jaxpp", f"{jaxpp.__version__} in {place}")
    yield from _judged(needed)


def check_jax() -> Iterator[Finding]:
    """Yields the versions of JAX and jaxlib, and whether they go together."""
    found = _version("jax")
    if not found:
        return  # `check_jaxpp` names it
    oldest, newest = TRIED[0], TRIED[-1]
    if _numbers(found) < _numbers(oldest):
        old = f"{found} is older than {oldest}, the oldest that jaxpp works with"
        yield Finding("jax", old, PROBLEM, f"pip install 'jax>={oldest},<={newest}'")
    elif _numbers(found) > _numbers(newest):
        new = f"{found} is newer than {newest}, the newest that was tested"
        yield Finding("jax", new, NOTE, f"if something fails: pip install 'jax<={newest}'")
    else:
        yield Finding("jax", found if found in TRIED else f"{found}, between {oldest} and {newest}")
    wanted = [each for each in _requirements("jax") if each.name == "jaxlib" and not each.extra]
    if not (jaxlib := _version("jaxlib")):
        yield Finding("jaxlib", "not installed", PROBLEM, f"pip install 'jax=={found}'")
    elif wrong := [each for each in wanted if not _allows(each.versions, jaxlib)]:
        yield Finding(
            "jaxlib", f"{jaxlib}, jax {found} needs {wrong[0].versions}", PROBLEM, f"pip install 'jax=={found}'"
        )
    else:
        yield Finding("jaxlib", jaxlib)


def check_extras() -> Iterator[Finding]:
    """Yields the installed extras of jaxpp, and each package of an extra that is too old."""
    try:
        requirements = _requirements("jaxpp")
    except metadata.PackageNotFoundError:
        return
    extras = sorted({each.extra for each in requirements if each.extra})
    whole: list[str] = []
    absent: list[str] = []
    for extra in extras:
        needed = [each for each in requirements if each.extra == extra]
        (whole if all(map(_is_installed, needed)) else absent).append(extra)
    yield Finding("extras", f"{', '.join(whole) or 'none'}; not installed: {', '.join(absent) or 'none'}")
    installed = [each for each in requirements if each.extra and _version(each.name)]
    yield from (finding for finding in _judged(installed) if finding.status == PROBLEM)


def _is_installed(requirement: _Requirement) -> bool:
    """Whether a package is installed, with its extras that are needed."""
    if not _version(requirement.name):
        return False
    return all(_is_installed(each) for each in _requirements(requirement.name) if each.extra in requirement.extras)


def _judged(needed: list[_Requirement]) -> Iterator[Finding]:
    """Yields the version of each package, as a problem if it is missing, or not a version that is needed."""
    for name, versions in dict.fromkeys((each.name, each.versions) for each in needed):
        found = _version(name)
        if name == "jax" and found:
            continue  # `check_jax` judges it
        if not found:
            yield Finding(name, "not installed", PROBLEM, f"pip install '{name}{versions}'")
        elif not _allows(versions, found):
            yield Finding(name, f"{found}, jaxpp needs {versions}", PROBLEM, f"pip install '{name}{versions}'")
        else:
            yield Finding(name, found)


def _requirements(package: str) -> list[_Requirement]:
    """Returns the requirements of a package, but none that depends on the platform. Raises PackageNotFoundError."""
    found: list[_Requirement] = []
    for line in metadata.requires(package) or ():
        parts = _REQUIREMENT.fullmatch(line.strip())
        if parts is None:
            continue
        extra = _EXTRA.search(parts["marker"] or "")
        if extra or not parts["marker"]:
            extras = frozenset(re.findall(r"[\w-]+", parts["extras"] or ""))
            found.append(_Requirement(parts["name"], parts["versions"].strip(), extras, extra[1] if extra else ""))
    return found


def _version(package: str) -> str:
    """Returns the version of an installed package, otherwise ""."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers of a release, without zeros at the end. A suffix such as `.dev1` is ignored."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in release[0].split(".")] if release else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _allows(versions: str, found: str) -> bool:
    """Whether a version is one of `versions`, such as `>=0.12.8,<1`."""
    return all(
        _COMPARISONS[comparison](_numbers(found), _numbers(limit))
        for comparison, limit in re.findall(r"(<=|>=|==|!=|~=|<|>)\s*([\w.]+)", versions)
    )
