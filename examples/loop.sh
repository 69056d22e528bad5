#!/bin/sh
# The loop: serve, load, record, simulate, choose, serve again, with the predicted and the measured gain side by side.
#
#     sh examples/loop.sh FOLDER
#
# FOLDER is made; all that is measured stays there. Variables: PACELINE (the command), POOL, PROMPTS, RATE (arrivals a
# second), REQUESTS, TOKENS (longest answer), TURNS (4 or more), PORT, OBSERVE (more options of `observe`, as --chat).
set -eu
OUT=${1:?usage: sh examples/loop.sh FOLDER}
PACELINE=${PACELINE:-paceline} POOL=${POOL:-pico} PORT=${PORT:-8000} TURNS=${TURNS:-6}
PROMPTS=${PROMPTS:-pools/pico/prompts.jsonl} RATE=${RATE:-2} REQUESTS=${REQUESTS:-20} TOKENS=${TOKENS:-48} OBSERVE=${OBSERVE:-}
export OMP_NUM_THREADS=1
mkdir "$OUT"
server=''
trap 'kill $server 2>/dev/null || true' EXIT

serve() { # NAME POLICY: a server of the target alone and of this policy, which records
    "$PACELINE" serve --pool "$POOL" --policy plain --policy "$2" --port "$PORT" --record "$OUT/$1.traffic" 2>"$OUT/$1.log" &
    server=$!
    until [ -f "$OUT/$1.log" ] && grep -q serving "$OUT/$1.log"; do
        kill -0 "$server" || { cat "$OUT/$1.log" >&2; exit 1; }
        sleep 0.2
    done
}

measure() { # NAME POLICY: both policies in turns, each turn with arrivals and prompts of its own; then the server ends
    "$PACELINE" observe "http://127.0.0.1:$PORT" --prompts "$PROMPTS" --tag "" --warmup 2 $OBSERVE \
        --workload "poisson:rate=$RATE,requests=$REQUESTS,output=$TOKENS" --policy plain --policy "$2" --turns "$TURNS" \
        --out "$OUT/$1" --json "$OUT/$1.json"
    kill "$server"
    wait "$server"
    server=''
}

echo "== serve and measure in turns: the target alone, and with drafts of 4"
serve drafts draft:4/target
measure drafts draft:4/target

echo "== what was recorded becomes a recording; seconds are fitted to the runs around one, and held against that one"
"$PACELINE" trace import auto "$OUT/drafts.traffic/responses-draft-4-target" \
    --drafter responses-draft-4-target=draft --token-drafter draft --out "$OUT/served.trace"
"$PACELINE" validate --observed "$OUT/drafts/draft-4-target-3" --calibrate "$OUT/drafts/plain-2" \
    --calibrate "$OUT/drafts/draft-4-target-2" --calibrate "$OUT/drafts/draft-4-target-4" --calibrate "$OUT/drafts/plain-4" \
    --cluster "$OUT/drafts.traffic/cluster.toml" --write-cost "$OUT/drafts.traffic/fitted.json" || [ $? -eq 1 ]

echo "== choose: which draft length answers this traffic fastest"
"$PACELINE" compare --trace "$OUT/served.trace" --workload "$OUT/drafts.traffic/workload" \
    --cluster "$OUT/drafts.traffic/cluster.toml" \
    --policy plain --policy draft:1/target --policy draft:2/target --policy draft:3/target --policy draft:4/target \
    --json "$OUT/predicted.json"
# The drafts that gain most, and of those that cannot be told apart from them the shortest.
CHOSEN=$(python3 -c 'import json, sys; found = json.load(open(sys.argv[1]))
rows = [row for row in found["rows"] if row["policy"] != "plain"]
most = max(rows, key=lambda row: row["gain"])["policy"]
tied = next((best["tied"] for best in found["best"] if best["policy"] == most), [])
print(min([most, *tied]))' "$OUT/predicted.json")

echo "== serve again, under $CHOSEN and the target alone in turns"
serve chosen "$CHOSEN"
measure chosen "$CHOSEN"
python3 - "$OUT" "$CHOSEN" <<'PY'
import json
import sys

folder, chosen = sys.argv[1:]


def read(name):
    with open(f"{folder}/{name}.json") as file:
        return json.load(file)


row = next(row for row in read("predicted")["rows"] if row["policy"] == chosen)
low, high = row.get("gain_ci") or (float("nan"), float("nan"))
found = read("chosen")
gain, apart = found["policies"][1]["gain"], found["pace_apart"]
print(f"== gain of {chosen} over the target alone, of the mean time in the system")
print(f"predicted {row['gain']:.2f}x (95% over seeds: {low:.2f} to {high:.2f})")
print(f"measured  {gain['mean']:.2f}x (95% over turns: {gain['low']:.2f} to {gain['high']:.2f})")
if apart is not None:
    busy = ": too busy a machine, the measured gain means little" if apart > 0.25 else ""
    print(f"from turn to turn the machine's pace differed by {apart:.0%}{busy}")
PY
