//go:build edamodel

package outcome

// Guards that can be taken away one at a time, to show that a model fails without them.
var (
	skipCancelGuard     bool // a kill handle registered after an abort is kept for nobody
	skipFinalCheck      bool // publishes without asking whether an abort won
	checkThenActAbort   bool // aborts by a store after a check
	checkThenActPublish bool // publishes by a store after a check
	handleOutsideLock   bool // looks for the kill handle before it decides, outside the mutex
	abortAfterEnd       bool // lets an abort win after the end was recorded
	releaseTwice        bool // releases at each end that is reported
	releaseUnproven     bool // releases although death is not proven
	detachWithoutCAS    bool // hands a job over although its caller has abandoned it
	abandonWithFirst    bool // ends a job with the first of its callers
	joinTheAbandoned    bool // adds a caller to a job that its last one has abandoned
	gateAddAfterDrain   bool // admits a call after the drain began
	skipReleaseOnFinal  bool // forgets the release when an unproven job is proven later
)
