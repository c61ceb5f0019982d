// Package metrics counts what the engine does, for Prometheus. Counters of commits, time-outs, cancellations, rollbacks
// and recoveries are moved by durable audit events, which the ledger's writer passes on, so that they cannot disagree
// with the trail; what has no such event is moved by the answer to a call; gauges are read at each scrape. All metrics
// are rows of one table.
//
// # Guarantees
//
//   - Every label has a closed set of values and every series is there from the start, the counters at 0 (TestStart); no
//     more than 3,000 with 40 tools (TestSize). What is outside of a set counts under the set's last value: a tool of an
//     earlier configuration is other, a code internal, a resolution or proof unknown (TestMoves).
//   - Each event and each answer moves what the table says and nothing else (TestMoves, TestKinds, TestCodes).
//   - The counters are what the trail says, counted (TestTrail).
//   - Names and units are as Prometheus wants them (TestLint); docs/metrics.md is the page itself (TestTables).
//
// # Not guaranteed
//
// That counters survive a restart: they count from the ledger's opening on, recovery included. That they move with the
// answer: events of reads ride on the ledger's next transaction.
//
// # Concurrency
//
// Everything may be called at once (TestConcurrent). Event and Finished wait for nobody. The functions in [Gauges] are
// called by scrapes, of which several may run at a time.
//
// # Failure
//
// None. New panics if a tool's name is not UTF-8.
//
// # Testing
//
// Used as it is, and read as text. A test of the whole counts the events of the trail behind the last ledger.opened, by
// kind, tool, code, resolution and proof, and compares the sums with the page, as TestTrail does with a real ledger.
//
// # Sources
//
// prometheus.io: instrumenting/exposition_formats, practices/naming, practices/instrumentation.
package metrics
