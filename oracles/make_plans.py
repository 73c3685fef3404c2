"""plans.json: where the optimizer of zhebrak/llm-cluster-simulator ends, for some jobs, from several starts.

    python oracles/make_plans.py --simulator PATH --esbuild PATH

--simulator is a clone of the repository, --esbuild the program of npm's package, which puts its TypeScript
and the lines below together; node runs them. None of its code is kept here.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from fixture import write_tables

COMMIT = "1db1341"
COMMAND = "python oracles/make_plans.py --simulator PATH --esbuild PATH"
JOBS = [  # model, theirs and ours; machines of eight H100; sequence length; sequences of a step
    ("llama3-8b", "llama3-8b", 1, 8192, 64),
    ("llama3-8b", "llama3-8b", 8, 8192, 512),
    ("llama3.3-70b", "llama3.1-70b", 8, 8192, 512),
    ("llama3.3-70b", "llama3.1-70b", 32, 8192, 512),
    ("llama3-405b", "llama3.1-405b", 128, 8192, 1024),
    ("llama3-405b", "llama3.1-405b", 2048, 8192, 2048),
]
STARTS = [("fsdp", 1, 1, 1), ("fsdp-tp", 8, 1, 1), ("fsdp-tp-pp", 8, 8, 2), ("fsdp-tp-pp", 8, 16, 4)]
SCRIPT = """
import { getSimulationMetrics } from './src/core/simulation/engine.ts';
import { optimizeTraining } from './src/core/simulation/optimizer.ts';
import { createMultiNodeCluster } from './src/core/hardware/topology.ts';
const rows = [];
for (const [model, ours, nodes, seq, batch] of JOBS) for (const [kind, tp, pp, stages] of STARTS) {
  const strategy: any = { tp, pp, sequenceParallel: tp > 1 };
  if (pp > 1) Object.assign(strategy, { pipelineSchedule: 'interleaved-1f1b', interleavedStages: stages });
  const config: any = {
    clusterConfig: createMultiNodeCluster('h100-sxm', 8, nodes), modelId: model, globalBatchSize: batch,
    microBatchSize: 1, sequenceLength: seq, strategyType: kind, strategyConfig: strategy,
    activationCheckpointing: true, flashAttention: true, mixedPrecision: 'bf16',
  };
  const start = [kind, tp, pp, stages];
  const row: any = { model: ours, gpus: nodes * 8, seq_len: seq, global_batch: batch, start };
  try {
    const found = optimizeTraining(config, 15e12, seq);
    const end: any = found.optimizedConfig, own = end.strategyConfig;
    const metrics: any = getSimulationMetrics(end);
    Object.assign(row, {
      success: found.success, strategy: end.strategyType, tp: own.tp ?? 1, cp: own.cp ?? 1, pp: own.pp ?? 1,
      micro_batch: end.microBatchSize, its_batch: end.globalBatchSize,
      its_mfu: Number(metrics.mfu.toFixed(4)), schedule: own.pipelineSchedule ?? null,
      virtual_stages: own.interleavedStages ?? 1,
      recompute: end.activationCheckpointing ? (end.checkpointingGranularity ?? 'full') : 'none',
      precision: end.mixedPrecision, memory_share: Number(metrics.memoryUtilization.toFixed(3)),
    });
  } catch (error) { row.error = String(error); }
  rows.push(row);
}
console.log(JSON.stringify(rows));
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulator", type=Path, required=True)
    parser.add_argument("--esbuild", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "-C", str(args.simulator), "archive", COMMIT, "src"], check=True, capture_output=True
        )
        subprocess.run(["tar", "x", "-C", folder], input=packed.stdout, check=True)
        head = f"const JOBS = {json.dumps(JOBS)}, STARTS = {json.dumps(STARTS)};\n"
        Path(folder, "ask.ts").write_text(head + SCRIPT)
        bundle = ["--bundle", "--platform=node", "--format=esm", "ask.ts", "--outfile=ask.mjs"]
        subprocess.run([str(args.esbuild.resolve()), *bundle], cwd=folder, check=True, capture_output=True)
        said = subprocess.run(["node", "ask.mjs"], cwd=folder, check=True, capture_output=True, text=True)
    source = f"zhebrak/llm-cluster-simulator at {COMMIT}"
    write_tables("plans.json", COMMAND, {"source": source, "rows": json.loads(said.stdout)})


if __name__ == "__main__":
    main()
