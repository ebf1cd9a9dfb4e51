"""An explanation as text: lines for any output, rich tables for a terminal, from the same facts in the same order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from heuristics.verdicts import amount

if TYPE_CHECKING:
    from rich.console import RenderableType

Facts = Mapping[str, Any]
Line = tuple[str, str]

_LEFT_OUT: Final = 0.05  # us; parts below are not worth a word


def lines(facts: Facts, *, sources: bool = False) -> list[Line]:
    """(head, fact), in the order in which the explanation is told, up to the candidates; `sources` adds the device's."""
    found = [
        ("problem", _problem(facts["problem"])),
        *([("assumed", "; ".join(facts["problem"]["assumed"]))] if facts["problem"]["assumed"] else []),
        ("device", _device(facts["device"])),
        *(_sources(facts["device"]) if sources else []),
        ("pick", _named(facts, "(launches by itself)")),
        ("rung", _rung(facts)),
        *[("note", note) for note in facts["notes"]],
        ("why", facts["why"]),
        ("work", _work(facts)),
        ("roof", f"{facts['roof_us']:.2f} us, bound by {facts['bound']}"),
        ("estimate", _estimate(facts)),
    ]
    if facts["waves"] is not None:
        found += [("waves", _waves(facts)), ("occupancy", _occupancy(facts["occupancy"]))]
    launches = f", {facts['launches']} launches" if (facts["launches"] or 1) > 1 else ""
    repeats = f"{'yes' if facts['deterministic'] else 'not promised'}: {facts['deterministic_why']}"
    invariant = f"{'yes' if facts['batch_invariant'] else 'no'}: {facts['batch_invariant_why']}"
    return [
        *found,
        ("workspace", f"{facts['workspace_bytes']:,} bytes{launches}"),
        ("repeats bit for bit", repeats),
        ("batch-invariant", invariant),
    ]


def text(facts: Facts, *, sources: bool = False) -> str:
    """The whole explanation."""
    told = [f"{head}: {fact}" for head, fact in lines(facts, sources=sources)]
    if facts["ranked"]:
        told += ["best by the model:", *(f"  {_us(each)}  {_named(each)}: {each['trouble']}" for each in facts["ranked"])]
    if facts["refused"]:
        told += ["refused:", *(f"  {each['variant']}: {each['refusal']}" for each in facts["refused"])]
    return "\n".join([*told, *([f"next: {_next(facts)}"] if facts["next"] else [])])


def rich(facts: Facts, *, sources: bool = False) -> RenderableType:
    """The same for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [_grid(lines(facts, sources=sources))]
    if facts["ranked"]:
        best = Table("us", "variant", "tile", "beside the pick", title="best by the model", title_justify="left")
        for each in facts["ranked"]:
            best.add_row(_us(each).strip(), each["variant"], each["tile"] or "-", Text(each["trouble"]))
        parts.append(best)
    if facts["refused"]:
        refused = Table("variant", "refused because", title="refused", title_justify="left")
        for each in facts["refused"]:
            refused.add_row(each["variant"], Text(each["refusal"] or ""))
        parts.append(refused)
    if facts["next"]:
        parts.append(_grid([("next", _next(facts))]))
    return Group(*parts)


def _grid(rows: list[Line]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for head, fact in rows:
        grid.add_row(head, Text(fact))
    return grid


def _problem(problem: Facts) -> str:
    aligns = "/".join(map(str, problem["align"]))
    told = f"{problem['described']}, lines of A/B/out aligned to {aligns} bytes, class {problem['class']}"
    epilogue = problem["epilogue"]
    extras = [
        "alpha" if epilogue["alpha"] != "1" else "",
        "beta and C" if epilogue["c"] else "",
        "bias" if epilogue["bias"] else "",
        epilogue["activation"] if epilogue["activation"] != "none" else "",
    ]
    asked = [word for word in ("deterministic", "batch_invariant") if problem[word]]
    if any(extras):
        told += f", with {', '.join(filter(None, extras))}"
    return f"{told}, asked to be {' and '.join(asked)}" if asked else told


def _device(device: Facts) -> str:
    rates = f"{device['tflops']:.4g} TFLOP/s for this dtype, {device['bandwidth_gbps'] / 1e3:.3g} TB/s"
    return f"{device['name']}, compute capability {device['capability']}, {device['sm_count']} SMs, {rates}"


def _sources(device: Facts) -> list[Line]:
    return [("source", f"{name}: {source}") for name, source in device["sources"].items()]


def _named(each: Facts, otherwise: str = "") -> str:
    return f"{each['variant']} {each['tile'] or otherwise}".rstrip()


def _rung(facts: Facts) -> str:
    row = facts["row"]
    if row is None:
        near = "no comparable row in any table"
    elif row["used"] and row["distance"] == 0:
        near = f"row of this very problem in {row['table']}"
    elif row["used"]:
        near = f"{row['distance']:.2f} octaves from {row['problem']} in {row['table']}, {row['time_us']:.4g} us there"
    else:
        near = f"nearest row {row['distance']:.2f} octaves away: {row['problem']} in {row['table']}"
    return f"{facts['rung']} ({near}): {facts['reason']}"


def _work(facts: Facts) -> str:
    side = "below" if facts["intensity"] < facts["ridge"] else "above"
    intensity = f"{facts['intensity']:.1f} flops a byte, {side} the ridge at {facts['ridge']:.0f}"
    return f"{facts['flops']:.4g} flops, {facts['least_bytes']:.4g} bytes at least ({amount(facts['least_bytes'])}), {intensity}"


def _estimate(facts: Facts) -> str:
    error = facts["estimate_error"]
    told = f"{facts['estimate_us']:.1f} us by the model"
    told += f", give or take {error:.0%}" if error is not None else ", its error not recorded"
    if facts["measured_us"] is not None:
        told += f"; measured {facts['measured_us']:.1f} us"
    parts = ", ".join(f"{part} {us:.1f}" for part, us in facts["estimate_parts"].items() if us >= _LEFT_OUT)
    return f"{told} ({parts})" if parts else told


def _waves(facts: Facts) -> str:
    used = f", {facts['tile_use']:.0%} of the tiles used" if facts["tile_use"] is not None else ""
    last = f", the last {facts['last_wave']:.0%} full" if facts["waves"] > 1 else ""
    what = "tiles walked over by resident programs" if facts["resident"] else "programs"
    return f"{facts['waves']:.2f} ({facts['programs']:,} {what}, {facts['at_once']:,} at once{last}){used}"


def _occupancy(held: Facts) -> str:
    needs = f"{held['registers']} registers a thread, {held['shared_bytes']:,} bytes of shared memory"
    where = "from compiled kernels" if held["source"] == "compiled" else "by formula"
    programs = f"{held['programs_per_sm']} program{'s' if held['programs_per_sm'] != 1 else ''} an SM"
    slots = f"{held['warps']} of {held['warp_slots']} warps"
    return f"{programs}, {slots} ({held['share']:.0%}), limited by {' and '.join(held['limited_by'])} ({needs}, {where})"


def _us(each: Facts) -> str:
    return f"{each['estimate_us']:10.1f} us" if each["estimate_us"] is not None else ""


def _next(facts: Facts) -> str:
    return f"{facts['next']}  ({facts['next_why']})"
