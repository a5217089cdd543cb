#!/usr/bin/env bash
# Runs the default tests as other machines would: with other instruction sets of XLA, NumPy and
# OpenBLAS, other hash seeds, orders and numbers of workers, and with a home that cannot be written.
#
#     tests/anywhere.sh                       # every row of the table below, in four runs
#     tests/anywhere.sh sse4.2 hash1+no-home  # a run with one row, and a run with two
#     PYTHON=.venv-newest/bin/python tests/anywhere.sh avx2
#
# Prints what each run took; fails if one of them does.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}

features() {  # those above NumPy's baseline that this processor has and whose names match
  "$python" -c "import re, numpy
found = numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', [])
print(*(name for name in found if re.search('$1', name)))"
}

declare -A rows=(
  [sse4.2]="XLA_FLAGS=--xla_cpu_max_isa=SSE4_2"
  [avx]="XLA_FLAGS=--xla_cpu_max_isa=AVX"
  [avx2]="XLA_FLAGS=--xla_cpu_max_isa=AVX2"
  [avx512]="XLA_FLAGS=--xla_cpu_max_isa=AVX512"
  [numpy-baseline]="NPY_DISABLE_CPU_FEATURES=$(features .)"
  [numpy-avx2]="NPY_DISABLE_CPU_FEATURES=$(features '512|V4')"
  [prescott]="OPENBLAS_CORETYPE=Prescott"
  [haswell]="OPENBLAS_CORETYPE=Haswell"
  [hash1]="PYTHONHASHSEED=1"
  [hash2]="PYTHONHASHSEED=2"
  [hash3]="PYTHONHASHSEED=3"
  [reversed]="PYTEST_ADDOPTS=--reversed"
  [one-worker]="WORKERS=1"
  [four-workers]="WORKERS=4"
  [no-home]="HOME=/dev/null"  # a file: no folder can be made in it, not even by root
)
runs=(sse4.2+numpy-baseline+prescott+hash1 avx+numpy-avx2+haswell+hash2+no-home
  avx2+hash3+four-workers reversed+one-worker)
grep -q avx512f /proc/cpuinfo && runs+=(avx512)

[ "$#" -gt 0 ] && runs=("$@")
failed=0
for name in "${runs[@]}"; do
  settings=()
  for row in ${name//+/ }; do
    setting=${rows[$row]-}
    [ -n "$setting" ] || { echo "no row is named $row; rows: ${!rows[*]}"; exit 2; }
    [ "$row" = no-home ] && settings=(-u XDG_CACHE_HOME -u XDG_CONFIG_HOME -u MPLCONFIGDIR)
  done
  settings+=(WORKERS=2)
  for row in ${name//+/ }; do settings+=("${rows[$row]}"); done
  if output=$(env "${settings[@]}" \
    bash -c "exec '$python' -m pytest -q -n \$WORKERS" 2>&1); then
    result=passed
  else
    result=FAILED failed=1
    grep -q '^=* FAILURES =' <<<"$output" && sed -n '/^=* FAILURES =/,$p' <<<"$output" ||
      tail -n 20 <<<"$output"
  fi
  echo "$name (${settings[*]}): $result, $(grep -oE '[0-9]+ programs compiled in [0-9]+ CPU seconds' \
    <<<"$output"), $(tail -n 1 <<<"$output")"
done
exit "$failed"
