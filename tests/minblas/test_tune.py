"""A whole tune on invented times: the journal, the table, going on, stopping, and what the next call gets."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

import minblas
from heuristics import store
from heuristics.table import Environment, problem_key
from kernel_zoo.spec import GemmProblem, TileConfig
from minblas import dispatch, errors, quarantine, settings
from minblas.journal import JournalError, identity, problem_from_dict, problem_to_dict, read_lines
from minblas.shapes import problem_of, unique
from minblas.tune import TuneAbortedError, tune
from minblas.tune_session import Session
from minblas.tune_trial import Pick
from tests.minblas.test_tune_shape import FakeBench
from tests.minblas.user_kernels import TILES, recipe, recipe_with

H200 = Environment("NVIDIA H200", (9, 0), 132, "570.1", "13.0", "3.7.1", "2.13.0", "3.12")
SHAPES = [(512, 512, 512), (256, 256, 4096), (16, 4096, 4096)]


class Benches:
    """Benches of invented times: what `faster` names takes 5 us, everything else 10 us and more."""

    def __init__(self, faster=lambda pick: False, **options):
        self.faster, self.options, self.opened = faster, options, []

    @contextlib.contextmanager
    def open(self, problem):
        bench = self.options.get("bench", _Rule)(self.faster, **{k: v for k, v in self.options.items() if k != "bench"})
        self.opened.append((problem, bench))
        yield bench


class _Rule(FakeBench):
    def __init__(self, faster, wrong=None, killing=None):
        super().__init__({})
        self.faster, self.is_wrong, self.kills = faster, wrong, killing

    def verdict(self, prepared):
        self.wrong = [prepared] if self.is_wrong and self.is_wrong(prepared) else []
        self.killing = [prepared] if self.kills and self.kills(prepared) else []
        return super().verdict(prepared)

    def of(self, prepared):
        if prepared == "torch":
            return 12.0
        return 5.0 if self.faster(prepared) else 10.0 + prepared.tile.block_k / 1000


@pytest.fixture(autouse=True)
def _machine(monkeypatch, tmp_path):
    """The environment of a GPU machine, and a table path that nothing else reads."""
    monkeypatch.setattr("minblas.environment.environment", lambda device: H200)
    dispatch.forget_plans()
    dispatch.QUARANTINE.forgive()
    yield
    for variant in dispatch.registry():
        if variant.origin == "user":
            dispatch.unregister(variant.name)
    dispatch.QUARANTINE.forgive()
    dispatch.forget_plans()


@pytest.fixture
def files(tmp_path):
    return {"resume": tmp_path / "journal.jsonl", "table": tmp_path / "table.json", "progress": False}


def rows(path):
    return [row for row, _ in read_lines(path)]


def test_winners_go_into_the_table(files):
    report = tune(SHAPES, benches=Benches(lambda pick: pick.variant == "persistent"), **files)
    assert (report.tuned, report.asked, report.left, report.changed) == (3, 3, 0, 3)
    assert report.table == str(files["table"])
    table = store.load(files["table"])
    assert table.environment == H200
    entry = table.lookup(problem_key(GemmProblem.of(512, 512, 512)))
    assert (entry.variant, entry.time_us, entry.torch_us) == ("persistent", 5.0, 12.0)
    assert entry.digest == dispatch.get("persistent").digest
    assert entry.runner_ups
    assert all(seen.time_us >= 5.0 for seen in entry.runner_ups)
    assert report.gain() == pytest.approx(2.0, rel=0.02)
    assert report.against_torch() == pytest.approx(2.4)
    assert "3 of 3 shapes tuned" in str(report)
    json.dumps(report.as_dict())


def test_the_next_call_gets_the_winner(files, monkeypatch, tmp_path):
    monkeypatch.setattr(store, "PACKAGED", tmp_path / "empty")
    before = minblas.explain(512, 512, 512)
    monkeypatch.setenv("MINBLAS_TABLE", str(files["table"]))
    tune(SHAPES[:1], benches=Benches(lambda pick: pick.variant == "persistent"), **files)
    after = minblas.explain(512, 512, 512)
    assert before.rung == "model"
    assert (after.variant, after.rung) == ("persistent", "exact")


def test_a_users_variant_earns_its_row(files, monkeypatch):
    minblas.register_variant("me.mine", recipe, dtypes=["fp16"], layouts=["nn"], candidates=TILES, verify=False)
    report = tune([(4096, 4096, 4096)], dtype="fp16", variants=["me.mine"], benches=Benches(), **files)
    assert {trial["variant"] for trial in report.rows[0]["trials"]} == {"me.mine"}
    monkeypatch.setenv("MINBLAS_TABLE", str(files["table"]))
    selection = minblas.explain(4096, 4096, 4096, dtype="fp16")
    assert (selection.variant, selection.rung) == ("me.mine", "exact")


def test_the_pick_in_force_is_tried_first_and_families_are_kept(files):
    benches = Benches()
    in_force = dispatch.select(GemmProblem.of(512, 512, 512), settings.named_arch("h200"))
    report = tune(SHAPES[:1], benches=benches, top_k=16, **files)
    trials = report.rows[0]["trials"]
    assert (trials[0]["variant"], trials[0]["tile"]["block_m"]) == (in_force.variant, in_force.tile.block_m)
    assert len(trials) == 16
    families = [trial["variant"] for trial in trials]
    serving = ("tiled", "persistent", "tma", "split_k", "split_k_fused", "warp_specialised", "ping_pong")
    assert all(families.count(name) >= 2 for name in serving)
    assert "aten" not in families


def test_the_most_promising_are_tried_with_both_starts(files):
    (row,) = tune([(16, 4096, 4096)], benches=Benches(), top_k=6, **files).rows
    starts = [dict(trial["tile"]["knobs"]).get("early") for trial in row["trials"]]
    assert starts[6:]
    assert None not in starts[6:]
    assert len(starts) <= 6 + 3


def test_challengers_compete_with_the_pick_in_force(files):
    in_force = dispatch.select(GemmProblem.of(512, 512, 512), settings.named_arch("h200"))
    assert in_force.variant == "tma"
    report = tune(SHAPES[:1], challengers=["split_k", "persistent"], per_variant=4, top_k=2, benches=Benches(), **files)
    trials = report.rows[0]["trials"]
    names = [trial["variant"] for trial in trials]
    assert (names[0], trials[0]["tile"]["block_m"]) == (in_force.variant, in_force.tile.block_m)
    assert sorted(names[1:]) == ["persistent"] * 4 + ["split_k"] * 4
    assert report.rows[0]["winner"] == 0  # all as fast: the pick in force stays
    again = tune(SHAPES[:1], challengers=["split_k"], benches=Benches(), **files)
    assert (again.fresh, again.tuned) == ([], 1)
    assert len([row for row in rows(files["resume"]) if row["kind"] == "shape"]) == 1


def test_a_challenger_that_is_faster_gets_the_row(files):
    report = tune(SHAPES[:1], challengers="persistent", benches=Benches(lambda pick: pick.variant == "persistent"), **files)
    assert report.changed == 1
    (entry,) = store.load(files["table"]).entries
    assert (entry.variant, entry.runner_ups[-1].variant) == ("persistent", "tma")


def test_a_pick_in_force_that_is_a_challenger_is_not_tried_twice(files):
    report = tune(SHAPES[:1], challengers=["tma"], top_k=5, benches=Benches(), **files)
    tried = [(trial["variant"], json.dumps(trial["tile"])) for trial in report.rows[0]["trials"]]
    assert len(tried) == len(set(tried)) == 5


def test_challengers_are_known_and_no_restriction(files):
    with pytest.raises(errors.UnknownVariantError, match="did you mean 'tiled'"):
        tune(SHAPES, challengers=["tilde"], benches=Benches(), **files)
    with pytest.raises(errors.ArgumentError, match="one of them"):
        tune(SHAPES, variants=["tiled"], challengers=["tma"], benches=Benches(), **files)


def test_aten_competes_where_it_may(files):
    class NoTile(_Rule):
        def of(self, prepared):
            return 3.0 if getattr(prepared, "variant", "") == "aten" else super().of(prepared)

    report = tune(SHAPES[:1], include_aten=True, benches=Benches(bench=NoTile), **files)
    assert report.rows[0]["trials"][report.rows[0]["winner"]]["variant"] == "aten"


def test_going_on_skips_what_is_done(files):
    tune(SHAPES[:2], benches=Benches(), **files)
    benches = Benches()
    report = tune(SHAPES, benches=benches, **files)
    assert [problem.k for problem, _ in benches.opened] == [4096]
    assert (len(report.rows), len(report.fresh), report.tuned) == (3, 1, 3)
    assert len(store.load(files["table"]).entries) == 3
    assert "2 of them before" in str(report)


def test_a_journal_cut_off_in_the_middle_of_a_line(files):
    tune(SHAPES[:2], benches=Benches(), **files)
    whole = files["resume"].read_bytes()
    files["resume"].write_bytes(whole[:-40])
    benches = Benches()
    tune(SHAPES[:2], benches=benches, **files)
    assert len(benches.opened) == 1
    assert [row["kind"] for row in rows(files["resume"])] == ["header", "shape", "shape"]


@pytest.mark.parametrize("cut", range(0, 400, 37))
def test_a_journal_cut_anywhere_can_be_gone_on_with(files, cut):
    tune(SHAPES[:1], benches=Benches(), **files)
    files["resume"].write_bytes(files["resume"].read_bytes()[:cut])
    assert tune(SHAPES[:1], benches=Benches(), **files).tuned == 1


@pytest.mark.parametrize("change", [{"gpu_name": "NVIDIA L4"}, {"triton": "3.6.0"}])
def test_a_journal_of_another_machine_is_not_gone_on_with(files, monkeypatch, change):
    tune(SHAPES[:1], benches=Benches(), **files)
    monkeypatch.setattr("minblas.environment.environment", lambda device: replace(H200, **change))
    with pytest.raises(JournalError, match="was taken with"):
        tune(SHAPES[:1], benches=Benches(), **files)


def test_a_file_that_is_no_journal(files):
    files["resume"].write_text("m,n,k\n")
    with pytest.raises(JournalError, match="not a JSON object"):
        tune(SHAPES[:1], benches=Benches(), **files)
    assert files["resume"].read_text() == "m,n,k\n"


@pytest.mark.parametrize(
    "line", ["xx", "[1]", '{"kind":"shape"}', '{"kind":"shape","winner":0,"problem":{"m":1}}', '{"kind":"fault"}']
)
def test_a_line_that_no_tune_wrote_costs_none_of_those_after_it(files, line):
    tune(SHAPES[:1], benches=Benches(), **files)
    header, *rows = files["resume"].read_text().splitlines(keepends=True)
    edited = "".join([header, f"{line}\n", *rows])
    files["resume"].write_text(edited)
    with pytest.raises(JournalError, match=r"line 2 of .* take the line out"):
        tune(SHAPES[:1], benches=Benches(), **files)
    assert files["resume"].read_text() == edited


def test_a_journal_that_does_not_say_where_it_was_taken(files):
    files["resume"].write_text('{"kind": "header", "version": 1}\n')
    with pytest.raises(JournalError, match="was taken with gpu None"):
        tune(SHAPES[:1], benches=Benches(), **files)


@pytest.mark.parametrize(("count", "needed"), [(0, "here is none"), (2, "GPUs, 0 to 1")])
def test_a_gpu_that_is_not_there(files, monkeypatch, count, needed):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(errors.DeviceError, match=f"a device is cuda:7; needed: .*{needed}"):
        tune(SHAPES, benches=Benches(), devices=[7], **files)


def test_the_budget_stops_it_cleanly(files, monkeypatch):
    report = tune(SHAPES, benches=Benches(), budget_s=0, **files)
    assert (report.left, report.tuned, report.table) == (3, 0, "")
    assert "goes on" in str(report)
    assert not files["table"].exists()


def test_a_wrong_candidate_is_left_out_everywhere_and_never_served(files):
    wrong = dispatch.select(GemmProblem.of(512, 512, 512), settings.named_arch("h200"))

    def is_wrong(pick):
        return (pick.variant, pick.tile) == (wrong.variant, wrong.tile)

    benches = Benches(wrong=is_wrong)
    report = tune([(512, 512, 512), (512, 512, 640)], benches=benches, **files)
    assert report.rejected["wrong"] == 1
    assert all(row["trials"][row["winner"]]["status"] == "ok" for row in report.rows)
    assert not any(is_wrong(pick) for pick in benches.opened[1][1].prepared)
    assert wrong.variant in " ".join(dispatch.QUARANTINE.as_dict())


def test_a_users_wrong_variant_is_quarantined(files):
    minblas.register_variant("me.bad", recipe, dtypes=["bf16"], layouts=["nn"], candidates=TILES, verify=False)
    tune(SHAPES[:1], benches=Benches(wrong=lambda pick: pick.variant == "me.bad"), **files)
    assert "found it wrong" in quarantine.reason("me.bad")


def test_a_lost_device_keeps_what_was_done_and_is_not_met_again(files):
    killer = []

    def kills(pick):
        if not killer and pick.variant == "tma" and benches.opened[-1][0].k == 4096:
            killer.append(pick)
        return pick in killer

    benches = Benches(killing=kills)
    with pytest.raises(TuneAbortedError, match="resume=") as caught:
        tune(SHAPES[:2], benches=benches, **files)
    assert killer[0].describe() in str(caught.value)
    assert len(store.load(files["table"]).entries) == 1
    assert [row["kind"] for row in rows(files["resume"])] == ["header", "shape", "fault"]
    again = Benches()
    assert tune(SHAPES[:2], benches=again, **files).tuned == 2
    assert killer[0] not in again.opened[0][1].prepared


def test_a_shape_too_large_for_the_device_is_noted(files):
    class TooLarge(_Rule):
        def estimate(self, prepared):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 96 GiB")

    report = tune(SHAPES[:2], benches=Benches(bench=TooLarge), **files)
    assert (report.tuned, len(report.rows)) == (0, 2)
    assert "out of memory" in str(report)


def test_without_a_gpu_it_says_what_is_needed(files):
    with pytest.raises(errors.DeviceError, match=r"needed: a CUDA GPU; verify_only=True"):
        tune(SHAPES, device="cpu", **files)


def test_verifying_on_a_cpu(files):
    report = tune([(64, 48, 40)], variants=["tiled", "split_k"], top_k=3, verify_only=True, **files)
    assert report.rejected == {"wrong": 0, "failed": 0}
    assert len(report.rows[0]["trials"]) == 3
    assert report.table == ""
    assert "1 of 1 shapes verified" in str(report)


def test_verifying_finds_a_wrong_kernel(files):
    made = recipe_with("off by a little")
    minblas.register_variant("me.bad", made, dtypes=["fp16"], layouts=["nn"], candidates=TILES, verify=False)
    report = tune([(40, 48, 40)], dtype="fp16", variants=["me.bad"], verify_only=True, **files)
    assert report.rejected["wrong"] == 2
    assert quarantine.reason("me.bad")


def test_names_and_shapes_that_are_not_known(files):
    with pytest.raises(errors.UnknownVariantError, match="did you mean 'tiled'"):
        tune(SHAPES, variants=["tilde"], benches=Benches(), **files)
    with pytest.raises(errors.ArgumentError, match=r"\(m, n, k\)"):
        tune([(3, 4)], benches=Benches(), **files)
    with pytest.raises(errors.ArgumentError, match="bf61"):
        tune(SHAPES, dtype="bf61", benches=Benches(), **files)


def test_shapes():
    assert problem_of((2, 3, 4, 5)).batch == 2
    assert problem_of((3, 4, 5), torch.float16, "nt") == GemmProblem.of(3, 4, 5, "fp16", "nt")
    assert problem_of((3, 4, 5), "tf32").precision == "tf32"
    found = unique([problem_of((3, 4, 5), "fp16"), problem_of((3, 4, 5), "bf16"), problem_of((3, 4, 0)), problem_of((4, 4, 5))])
    assert [problem.m for problem in found] == [3, 4]


def test_problems_survive_the_journal():
    problem = replace(GemmProblem.of(5, 6, 7, "fp8e4m3", "nt", batch=3, out_dtype="bf16"), deterministic=True)
    again = problem_from_dict(json.loads(json.dumps(problem_to_dict(problem))))
    assert again == problem
    assert identity(again) == identity(problem)


def test_a_tile_is_kept_as_it_was(files):
    tile = TileConfig(64, 64, 32, knobs=(("subtile", 2),))
    minblas.register_variant("me.knob", recipe, dtypes=["bf16"], layouts=["nn"], candidates=[tile], verify=False)
    tune(SHAPES[:1], variants="me.knob", benches=Benches(), **files)
    assert store.load(files["table"]).entries[0].tile == tile


def test_a_shape_that_waits_for_its_binaries_lets_others_pass():
    def planned(m):
        return GemmProblem.of(m, 8, 8), [Pick("tiled", None)]

    shapes = [planned(1), planned(2), planned(3)]
    session = Session({}, None, None, 1, None, False)
    pending = {shape[0].m: Future() for shape in shapes}
    session._pending = {(problem, picks[0]): [pending[problem.m]] for problem, picks in shapes}
    pending[2].set_result(None)
    order = session.ready(shapes)
    assert next(order)[0].m == 2
    pending[3].set_result(None)
    assert next(order)[0].m == 3
    assert next(order)[0].m == 1  # nothing else is left: this one is waited for
