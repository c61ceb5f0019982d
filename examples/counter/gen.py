"""Writes timing constraints for the counter, and remembers the period in the session."""
import argparse
import json

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--period-ns", type=int, default=10)
args = parser.parse_args()

with open(args.out, "w") as sdc:
    sdc.write(f"create_clock -name clk -period {args.period_ns} [get_ports clk]\n")
with open("_state.next.json", "w") as state:
    json.dump({"constraints": {"period_ns": args.period_ns}}, state)
print(f"clock period {args.period_ns} ns")
