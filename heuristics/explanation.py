"""What explains a pick, as data: every fact with its numbers, in the order in which they are told.

Pure and lazy: made from a Selection when somebody asks. `rendering` turns the same data into lines and tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from heuristics import reasons
from heuristics.distance import distance
from heuristics.footprint import Footprint
from heuristics.roof import rate, ridge, roof_us
from heuristics.table import TableEntry, problem_key
from heuristics.verdicts import compare
from heuristics.verdicts import standing as standing_of
from kernel_zoo.spec import Arch, Candidate, GemmProblem

if TYPE_CHECKING:
    from heuristics.selection import Selection

SHOWN: Final = 5


def facts(selection: Selection) -> dict[str, Any]:
    """Everything that explains a selection, JSON-able, in the order of the explanation."""
    s = selection
    command, purpose = reasons.next_command(s)
    return {
        "problem": _problem(s.problem, s.assumed),
        "device": _device(s.arch, s.problem),
        "variant": s.variant,
        "tile": s.tile.describe() if s.tile else None,
        "rung": s.rung,
        "table": s.table,
        "distance": s.distance,
        "row": _row(s),
        "reason": s.reason,
        "notes": list(s.notes),
        "why": reasons.because(s),
        **_work(s.problem, s.arch),
        "estimate_us": s.estimate.time_us,
        "estimate_error": s.estimate_error,
        "estimate_parts": dict(s.estimate.parts),
        "measured_us": s.measured_us,
        **_waves(s.footprint),
        "workspace_bytes": s.workspace_bytes,
        "launches": s.footprint.launches if s.footprint else None,
        "deterministic": s.deterministic,
        "deterministic_why": reasons.repeats(s),
        "batch_invariant": s.problem.batch_invariant,
        "batch_invariant_why": reasons.invariance(s),
        "ranked": [_ranked(s, candidate) for candidate in s.ranked[:SHOWN]],
        "refused": [_refused(candidate) for candidate in s.refused],
        "next": command or None,
        "next_why": purpose or None,
    }


def _problem(p: GemmProblem, assumed: tuple[str, ...]) -> dict[str, Any]:
    epilogue = p.epilogue
    return {
        "batch": p.batch,
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "dtype": p.dtype,
        "out_dtype": p.out.dtype,
        "precision": p.precision,
        "layout": p.layout,
        "align": [p.a.line_align, p.b.line_align, p.out.line_align],
        "class": p.shape_class,
        "epilogue": {
            "alpha": epilogue.alpha,
            "beta": epilogue.beta,
            "c": epilogue.c is not None,
            "bias": epilogue.bias is not None,
            "activation": epilogue.activation,
        },
        "deterministic": p.deterministic,
        "batch_invariant": p.batch_invariant,
        "described": p.describe(),
        "assumed": list(assumed),
    }


def _device(arch: Arch, problem: GemmProblem) -> dict[str, Any]:
    figures = ("sm_count", "smem_per_block", "smem_per_sm", "registers_per_sm", "threads_per_sm", "l2_bytes", "clock_ghz")
    return {
        "name": arch.name,
        "capability": f"{arch.capability[0]}.{arch.capability[1]}",
        **{name: getattr(arch, name) for name in figures},
        "bandwidth_gbps": arch.bandwidth_gbps,
        "tflops": rate(problem, arch),
        "sources": dict(arch.sources),
    }


def _row(s: Selection) -> dict[str, Any] | None:
    """The row that the pick rests on, else the nearest one there is."""
    found: tuple[float, str, TableEntry] | None
    if s.entry is not None:
        found = (distance(problem_key(s.problem), s.entry.key), s.table or "", s.entry)
    else:
        found = s.nearest_row
    if found is None:
        return None
    far, table, entry = found
    return {
        "problem": entry.key.describe(),
        "table": table,
        "distance": far,
        "variant": entry.variant,
        "tile": entry.tile.describe() if entry.tile else None,
        "time_us": entry.time_us,
        "source": entry.source,
        "date": entry.date,
        "used": s.entry is not None,
    }


def _work(p: GemmProblem, arch: Arch) -> dict[str, Any]:
    roof, bound = roof_us(p, arch)
    return {
        "flops": p.flops,
        "least_bytes": p.least_bytes,
        "intensity": p.flops / max(p.least_bytes, 1),
        "ridge": ridge(p, arch),
        "roof_us": roof,
        "bound": bound,
    }


def _waves(held: Footprint | None) -> dict[str, Any]:
    if held is None:
        names = ("waves", "last_wave", "tiles", "programs", "resident", "at_once", "busy_sms", "tile_use", "occupancy")
        return dict.fromkeys(names)
    return {
        "waves": held.waves,
        "last_wave": held.last_wave,
        "tiles": held.tiles,
        "programs": held.programs,
        "resident": held.resident,
        "at_once": held.at_once,
        "busy_sms": held.busy_sms,
        "tile_use": held.tile_use,
        "occupancy": held.occupancy.as_dict(),
    }


def _ranked(s: Selection, candidate: Candidate) -> dict[str, Any]:
    ratio, part, trouble = compare(s, candidate)
    held = standing_of(s, candidate).footprint
    estimate = candidate.estimate
    return {
        "variant": candidate.variant,
        "tile": candidate.tile.describe() if candidate.tile else None,
        "estimate_us": estimate.time_us if estimate else None,
        "refusal": None,
        "ratio": ratio,
        "part": part,
        "trouble": trouble,
        "waves": held.waves if held else None,
        "tile_use": held.tile_use if held else None,
        "workspace_bytes": held.workspace_bytes if held else None,
    }


def _refused(candidate: Candidate) -> dict[str, Any]:
    refusal = candidate.refusal
    return {
        "variant": candidate.variant,
        "tile": candidate.tile.describe() if candidate.tile else None,
        "estimate_us": None,
        "refusal": refusal.sentence if refusal else None,
        "rule": refusal.rule if refusal else None,
    }
