//go:build edamodel

package batch

// Guards that can be taken away one at a time, to show that a model fails without them.
var (
	loseWakeup           bool // a put during a round does not wake the writer
	failOnlyFirst        bool // a failed COMMIT fails the first operation only
	ackLateRider         bool // what was put during the COMMIT is acknowledged by it
	sinkBeforeDurable    bool // sinks see events whose COMMIT then fails
	automatonNotRestored bool // orders keep what a failed COMMIT took back
	refuseWholeBatch     bool // one refused operation refuses its neighbours
	commitAfterPoison    bool // statements go on after the ledger was poisoned
)
