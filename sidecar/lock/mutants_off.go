//go:build !edamodel

package lock

// Guards that a model build can take away; see mutants_on.go.
const (
	grantOverlap         = false
	skipDestroyedRecheck = false
	loseHandOn           = false
	failOnlyFirstWaiter  = false
	forgetBehind         = false
	overtake             = false
	slotLeak             = false
)
