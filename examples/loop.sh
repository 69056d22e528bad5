#!/bin/sh
# The loop: serve, load, record, simulate, choose, serve again, with the predicted and the measured gain side by side.
#
#     sh examples/loop.sh FOLDER
#
# FOLDER is made; all that is measured stays there. Variables: PACELINE (the command), POOL, PROMPTS, RATE (arrivals a
# second), REQUESTS, TOKENS (longest answer), PORT.
set -eu
OUT=${1:?usage: sh examples/loop.sh FOLDER}
PACELINE=${PACELINE:-paceline} POOL=${POOL:-pico} PORT=${PORT:-8000}
PROMPTS=${PROMPTS:-pools/pico/prompts.jsonl} RATE=${RATE:-2} REQUESTS=${REQUESTS:-40} TOKENS=${TOKENS:-48}
LOAD="poisson:rate=$RATE,requests=$REQUESTS,output=$TOKENS"
export OMP_NUM_THREADS=1
mkdir "$OUT"
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true' EXIT

serve() { # NAME POLICY: a server that records, until `ended`
    "$PACELINE" serve --pool "$POOL" --policy "$2" --port "$PORT" --record "$OUT/$1.traffic" 2>"$OUT/$1.log" &
    server=$!
    until grep -q 'serving' "$OUT/$1.log"; do
        kill -0 "$server" || { cat "$OUT/$1.log" >&2; exit 1; }
        sleep 0.2
    done
}

load() { # NAME SEED: the same seed is the same arrivals and prompts
    "$PACELINE" observe "http://127.0.0.1:$PORT" --prompts "$PROMPTS" --workload "$LOAD" --seed "$2" --warmup 2 \
        --drafter draft --out "$OUT/$1.run"
}

ended() {
    kill "$server"
    wait "$server"
    server=
}

echo "== serve and load: the target alone, then with drafts of 4"
serve plain plain
load plain 1
ended
serve drafts draft:4/target
load drafts 1
load again 2
ended

echo "== what was recorded becomes a recording, and seconds are fitted to two of the runs and held against the third"
"$PACELINE" trace import auto "$OUT/drafts.traffic/responses-draft-4-target" \
    --drafter responses-draft-4-target=draft --token-drafter draft --out "$OUT/served.trace"
"$PACELINE" validate --observed "$OUT/again.run" --calibrate "$OUT/plain.run" --calibrate "$OUT/drafts.run" \
    --cluster "$OUT/drafts.traffic/cluster.toml" --write-cost "$OUT/fitted.json" || [ $? -eq 1 ]
sed 's/^# cost/cost/' "$OUT/drafts.traffic/cluster.toml" >"$OUT/cluster.toml"

echo "== choose: which draft length answers this traffic soonest"
"$PACELINE" compare --trace "$OUT/served.trace" --workload "$OUT/plain.traffic/workload" --cluster "$OUT/cluster.toml" \
    --policy plain --policy draft:1/target --policy draft:2/target --policy draft:3/target --policy draft:4/target \
    --json "$OUT/predicted.json"
CHOSEN=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["best"][0]["policy"])' "$OUT/predicted.json")

echo "== serve again, under $CHOSEN, with the same arrivals"
serve chosen "$CHOSEN"
load chosen 1
ended
"$PACELINE" metrics "$OUT/plain.run" --json "$OUT/plain.json"
"$PACELINE" metrics "$OUT/chosen.run" --json "$OUT/chosen.json"
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
told = [soonest * rows[chosen]["gain"], soonest]
seen = [read(name)["e2e_s"]["mean"] for name in ("plain", "chosen")]
print("== mean time in the system, seconds, and its gain over the target alone")
print(f"{'':10} {'plain':>8} {chosen:>16} {'gain':>6}")
print(f"{'predicted':10} {told[0]:8.3f} {told[1]:16.3f} {rows[chosen]['gain']:5.2f}x  (95% over seeds: {low:.2f} to {high:.2f})")
print(f"{'measured':10} {seen[0]:8.3f} {seen[1]:16.3f} {seen[0] / seen[1]:5.2f}x")
PY
