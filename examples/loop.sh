#!/bin/sh
# The loop: serve, load, record, simulate, choose, serve again, with the predicted and the measured gain side by side.
#
#     sh examples/loop.sh FOLDER
#
# FOLDER is made; all that is measured stays there. Variables: PACELINE (the command), POOL, PROMPTS, RATE (arrivals a
# second), REQUESTS, TOKENS (longest answer), PORT (and the one above it), OBSERVE (more options of `observe`, as
# --chat). Settings are measured in turns, since a machine's pace changes from minute to minute.
set -eu
OUT=${1:?usage: sh examples/loop.sh FOLDER}
PACELINE=${PACELINE:-paceline} POOL=${POOL:-pico} PORT=${PORT:-8000}
PROMPTS=${PROMPTS:-pools/pico/prompts.jsonl} RATE=${RATE:-2} REQUESTS=${REQUESTS:-40} TOKENS=${TOKENS:-48} OBSERVE=${OBSERVE:-}
LOAD="poisson:rate=$RATE,requests=$REQUESTS,output=$TOKENS"
PLAIN=$PORT OTHER=$((PORT + 1))
export OMP_NUM_THREADS=1
mkdir "$OUT"
plain='' other=''
trap 'kill $plain $other 2>/dev/null || true' EXIT

serve() { # NAME POLICY PORT: a server that records, until it is killed; its process is $server
    "$PACELINE" serve --pool "$POOL" --policy "$2" --port "$3" --record "$OUT/$1.traffic" 2>"$OUT/$1.log" &
    server=$!
    until grep -qs 'serving' "$OUT/$1.log"; do
        kill -0 "$server" || { cat "$OUT/$1.log" >&2; exit 1; }
        sleep 0.2
    done
}

load() { # NAME SEED PORT: the same seed is the same arrivals and prompts
    "$PACELINE" observe "http://127.0.0.1:$3" --prompts "$PROMPTS" --workload "$LOAD" --seed "$2" --warmup 2 \
        --tag "" --drafter draft $OBSERVE --out "$OUT/$1.run"
}

echo "== serve and load in turns: the target alone, and with drafts of 4"
serve plain plain "$PLAIN" && plain=$server
serve drafts draft:4/target "$OTHER" && other=$server
load plain-1 1 "$PLAIN"
load drafts-1 1 "$OTHER"
load judged 2 "$OTHER"
load drafts-2 3 "$OTHER"
load plain-2 3 "$PLAIN"
kill "$other"
wait "$other"

echo "== what was recorded becomes a recording; seconds are fitted to the runs around one, and held against that one"
"$PACELINE" trace import auto "$OUT/drafts.traffic/responses-draft-4-target" \
    --drafter responses-draft-4-target=draft --token-drafter draft --out "$OUT/served.trace"
"$PACELINE" validate --observed "$OUT/judged.run" --calibrate "$OUT/plain-1.run" --calibrate "$OUT/plain-2.run" \
    --calibrate "$OUT/drafts-1.run" --calibrate "$OUT/drafts-2.run" \
    --cluster "$OUT/drafts.traffic/cluster.toml" --write-cost "$OUT/drafts.traffic/fitted.json" || [ $? -eq 1 ]

echo "== choose: which draft length answers this traffic soonest"
"$PACELINE" compare --trace "$OUT/served.trace" --workload "$OUT/drafts.traffic/workload" \
    --cluster "$OUT/drafts.traffic/cluster.toml" \
    --policy plain --policy draft:1/target --policy draft:2/target --policy draft:3/target --policy draft:4/target \
    --json "$OUT/predicted.json"
CHOSEN=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["best"][0]["policy"])' "$OUT/predicted.json")

echo "== serve again, under $CHOSEN, and the target alone in turn, each with the same arrivals"
serve chosen "$CHOSEN" "$OTHER" && other=$server
for turn in 1 2; do
    load "before-$turn" "$turn" "$PLAIN"
    load "chosen-$turn" "$turn" "$OTHER"
done
kill "$plain" "$other"
wait "$plain" "$other"
plain='' other=''
for name in before-1 chosen-1 before-2 chosen-2; do
    "$PACELINE" metrics "$OUT/$name.run" --json "$OUT/$name.json"
done
python3 - "$OUT" "$CHOSEN" <<'PY'
import json
import sys

folder, chosen = sys.argv[1:]


def read(name):
    with open(f"{folder}/{name}.json") as file:
        return json.load(file)


rows = {row["policy"]: row for row in read("predicted")["rows"]}
low, high = rows[chosen].get("gain_ci") or (float("nan"), float("nan"))
soonest = rows[chosen]["mean"].get("in_system_s", float("nan"))  # of plain there is one run, and no mean
print("== mean time in the system, seconds, and its gain over the target alone")
print(f"{'':12} {'plain':>8} {chosen:>16} {'gain':>6}")
told = f"(95% over seeds: {low:.2f} to {high:.2f})"
print(f"{'predicted':12} {soonest * rows[chosen]['gain']:8.3f} {soonest:16.3f} {rows[chosen]['gain']:5.2f}x  {told}")
for turn in "12":
    plain, fast = (read(f"{name}-{turn}")["e2e_s"]["mean"] for name in ("before", "chosen"))
    print(f"{'measured, ' + turn:12} {plain:8.3f} {fast:16.3f} {plain / fast:5.2f}x")
PY
