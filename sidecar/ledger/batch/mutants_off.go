//go:build !edamodel

package batch

// Guards that a model build can take away; see mutants_on.go.
const (
	loseWakeup           = false
	failOnlyFirst        = false
	ackLateRider         = false
	sinkBeforeDurable    = false
	automatonNotRestored = false
	refuseWholeBatch     = false
	commitAfterPoison    = false
)
