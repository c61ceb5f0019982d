//go:build edamodel

package lock

// Guards that can be taken away one at a time, to show that a model fails without them.
var (
	grantOverlap         bool // grants without looking at the holders
	skipDestroyedRecheck bool // believes that a session is alive after the grant
	loseHandOn           bool // a waiter that gives up after its grant keeps the keys
	failOnlyFirstWaiter  bool // a tombstone fails one waiter, the others are granted
	forgetBehind         bool // who gives up while he waits is not in the way any more, and nobody looks
	overtake             bool // grants past an earlier waiter that conflicts
	slotLeak             bool // a waiter that gives up stays in the queue's count
)
