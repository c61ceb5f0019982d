//go:build edamodel

package batch

// Each removes one guard; exactly one test sets each.
var (
	loseWakeup           bool // a put during a round does not wake the writer
	failOnlyFirst        bool // a failed COMMIT fails the first operation only
	ackLateRider         bool // what was put during the COMMIT is acknowledged by it
	sinkBeforeDurable    bool // sinks see events whose COMMIT then fails
	automatonNotRestored bool // orders keep what a failed COMMIT took back
	refuseWholeBatch     bool // one refused operation refuses its neighbours
	commitAfterPoison    bool // statements go on after the ledger was poisoned
)
