#!/usr/bin/env bash
# Measures an endpoint, or reads a run, and judges it against a budget. One script for GitHub, GitLab and a plain shell.
# Settings come as environment variables, because text that is spliced into a script would be executed.
#   TARGET    URL of the endpoint, or a run folder
#   SLO       limits, separated by commas: "ttft p99 < 500ms, errors < 1%"; BUDGET names a budget file in its place
#   RATE      offered load of a URL, such as 12/s [the budget file's]
#   MAX       longest measurement of a URL [10m]; it ends as soon as each row is decided
#   READY     longest wait until the endpoint answers [10m]
#   BASELINE  run of the target branch, for relative limits; absent or empty folders are ignored
#   OUT       folder of the results [plimsoll-gate]: run/, gate.md, gate.svg, gate.xml, gate.sarif, gate.json, verdict.
#             The results of an earlier call move to OUT.previous.
#   ARGS      further flags of `plimsoll gate`, separated by spaces
# Exits with the code of `plimsoll gate`: 0 pass, 1 broken, 3 inconclusive, 4 invalid, 5 unreachable.
set -uo pipefail
target=${TARGET:?"set TARGET to the endpoint's URL or to a run folder"}
out=${OUT:-plimsoll-gate}
# A runner may keep its workspace: what an earlier call left must not pass for this one's result.
if [ -e "$out" ]; then
  rm -rf "$out.previous"
  mv "$out" "$out.previous"
fi
mkdir -p "$out"
read -ra more <<<"${ARGS:-}"
flags=(--format json --markdown "$out/gate.md" --svg "$out/gate.svg" --junit "$out/gate.xml")
if [ -n "${BUDGET:-}" ]; then
  # SARIF points into the budget file.
  flags+=(--budget "$BUDGET" --sarif "$out/gate.sarif")
else
  flags+=(--slo "${SLO:?"set SLO or BUDGET"}")
fi
# The first build of a branch has no baseline yet.
if [ -n "${BASELINE:-}" ] && [ -e "$BASELINE/run.json" ]; then flags+=(--baseline "$BASELINE"); fi
case $target in
http://* | https://*)
  flags+=(--wait-ready "${READY:-10m}" --until-decided --max "${MAX:-10m}" -o "$out/run")
  [ -z "${RATE:-}" ] || flags+=(--rate "$RATE")
  ;;
esac
plimsoll gate "$target" "${flags[@]}" "${more[@]}" >"$out/gate.json"
code=$?
case $code in 0) verdict=pass ;; 1) verdict=broken ;; 3) verdict=inconclusive ;; 4) verdict=invalid ;; *) verdict=error ;; esac
echo "$verdict" >"$out/verdict"
if [ -e "$out/gate.md" ]; then cat "$out/gate.md"; fi
exit "$code"
