//go:build !edamodel

package batch

// Each removes one guard; a test under the tag edamodel must notice. Here they vanish.
const (
	loseWakeup           = false
	failOnlyFirst        = false
	ackLateRider         = false
	sinkBeforeDurable    = false
	automatonNotRestored = false
	refuseWholeBatch     = false
	commitAfterPoison    = false
)
