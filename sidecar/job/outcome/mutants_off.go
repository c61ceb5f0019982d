//go:build !edamodel

package outcome

// Guards that a model build can take away; see mutants_on.go.
const (
	skipCancelGuard     = false
	skipFinalCheck      = false
	checkThenActAbort   = false
	checkThenActPublish = false
	handleOutsideLock   = false
	abortAfterEnd       = false
	releaseTwice        = false
	releaseUnproven     = false
	detachWithoutCAS    = false
	abandonWithFirst    = false
	joinTheAbandoned    = false
	gateAddAfterDrain   = false
	skipReleaseOnFinal  = false
)
