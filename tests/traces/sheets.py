"""Rows of JSON that say what files hold, how they are read, and what comes of it: what is seen, or the line of refusal.

A row has the `files` by name, or the text of a `workload`, how they are read (the `format` and `options` of an import,
or else options of a workload), and what was `seen` of it, or `told`. `python -m tests.traces.sheets` writes both anew:
look at what changes.
"""

import json
import tempfile
from collections import Counter
from heapq import heappop, heappush
from pathlib import Path

from paceline.traces.importers import ImportOptions, Load, read_recording
from paceline.traces.workloads import open_workload
from paceline.traces.workloads.arrival import requests_of

HERE = Path(__file__).parent
IMPORTED, NOT_IMPORTED = (HERE / "importers" / f"{name}.jsonl" for name in ("read", "refused"))
OPENED, NOT_OPENED = (HERE / "workloads" / f"{name}.jsonl" for name in ("read", "refused"))


def read_rows(sheet):
    return [json.loads(line) for line in sheet.read_text(encoding="utf-8").splitlines()]


def rows_in(sheet, folder):
    """The rows of a sheet, each with a folder of its own."""
    for number, row in enumerate(read_rows(sheet)):
        (place := folder / str(number)).mkdir()
        yield row, place


def written(row, folder):
    """Paths of the files of a row, or the text of its workload."""
    for name, text in row.get("files", {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return [folder / name for name in row.get("files", {})] or [row["workload"]]


def options_of(row):
    """The options of an import as its caller gives them."""
    made = {"load": lambda load: Load(**load), "token_drafters": frozenset}
    return {key: made.get(key, lambda value: value)(value) for key, value in row["options"].items()}


def imported(row, paths):
    """The recording of the files of a row."""
    return read_recording(row["format"], paths, ImportOptions(**options_of(row)))


def told(row, folder):
    """The line with which the files of a row are refused; the folder is left out of it."""
    paths = written(row, folder)
    try:
        if "format" in row:
            imported(row, paths)
        else:
            for first in open_workload(paths[0], **row.get("options", {})):
                list(requests_of(first))
    except ValueError as error:
        return str(error).replace(f"{folder}/", "")
    return ""


def short(value):
    return float(f"{value:.9g}")


def shown(rounds, form):
    """Rounds as they stand in the text; where a draw placed them, how many there are of each, or the sums it met."""
    columns = {name: getattr(rounds, name).tolist() for name in ("start", "accepted", "drafted")}
    if rounds.placed is None:
        found = columns
    else:
        sums = {"accepted": sum(columns["accepted"]), "drafted": sum(columns["drafted"])}
        counts = {name: dict(sorted(Counter(columns[name]).items())) for name in sums}
        found = {"first": columns["start"][:1], "placed": int(rounds.placed.sum()), "rounds": len(rounds.start)}
        found |= {"drafting": sum(count > 0 for count in columns["drafted"])}
        found |= sums if form == "request means" else counts
    seconds = {name: getattr(rounds, name) for name in ("draft_s", "verify_s") if getattr(rounds, name) is not None}
    return found | {name: [short(value) for value in column] for name, column in seconds.items()}


def seen(row, folder):
    """What the recording of the files of a row holds, but for the notes that all recordings of its format have."""
    recording = imported(row, written(row, folder))
    meta, requests = recording.meta, []
    for one in recording.requests:
        request = {"id": one.request_id, "tag": one.tag, "prompt_tokens": one.prompt_tokens, "tokens": one.num_tokens}
        request |= {"prompt": one.prompt, "output": one.output}
        for name in ("wall_s", "prefill_s"):
            request[name] = {method: short(value) for method, value in getattr(one, name).items()}
        request |= {"rounds": {name: shown(rounds, meta.form) for name, rounds in one.rounds.items()}}
        requests.append({key: value for key, value in request.items() if value})
    notes = [note.replace(f"{folder}/", "") for note in meta.notes if not note.startswith(("Exact:", "Unknown:"))]
    drafters = [drafter.model_dump(exclude_defaults=True) for drafter in meta.drafters]
    for drafter in drafters:
        if "stated" in drafter:
            drafter["stated"]["hazards"] = [short(value) for value in drafter["stated"]["hazards"]]
    found = {"source": meta.source, "form": meta.form, "drafters": drafters, "notes": notes, "requests": requests}
    return json.loads(json.dumps(found))


def all_of(workload, served_ps=2 * 10**12):
    """Every request by time, as if each wrote its whole answer as it arrived, and ended some seconds later."""
    found = []
    for first in workload:
        coming = [(first.arrives_ps, 0, first)]
        while coming:
            at_ps, _, one = heappop(coming)
            found.append(one)
            for depth in () if one.turns is None else one.turns.depths:
                for other in one.turns.reached(depth, at_ps):
                    heappush(coming, (other.arrives_ps, len(found) + len(coming), other))
            for other in () if one.turns is None else one.turns.after(at_ps + served_ps):
                heappush(coming, (other.arrives_ps, len(found) + len(coming), other))
    return found


def opened(row, folder):
    """What the workload of a row hands out: of each request id, picoseconds, prompt, answer and more."""
    (source,) = written(row, folder)
    workload = open_workload(source, **row.get("options", {}))
    requests = []
    for one in all_of(workload):
        more = {name: getattr(one, name) for name in ("tag", "slo", "blocks", "answer", "depths")}
        kept = {
            name: list(value) if name != "tag" and name != "slo" else value for name, value in more.items() if value
        }
        requests.append([one.request_id, one.arrives_ps, one.prompt_tokens, one.output_tokens, kept])
    about, notes = workload.about, [note.replace(f"{folder}/", "") for note in workload.about.notes]
    return {"format": about.format, "name": about.name, "unit": about.unit_tokens, "notes": notes, "requests": requests}


def main():
    for sheets, name, shown_of in (
        ((IMPORTED,), "seen", seen),
        ((OPENED,), "seen", opened),
        ((NOT_IMPORTED, NOT_OPENED), "told", told),
    ):
        for sheet in sheets:
            rows = read_rows(sheet)
            for row in rows:
                with tempfile.TemporaryDirectory() as folder:
                    row[name] = shown_of(row, Path(folder))
            sheet.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
