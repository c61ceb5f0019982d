//go:build edamodel

package outcome

import "testing"

// TestMutants takes each guard away and wants its scenario to fail.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name     string
		guard    *bool
		scenario string
	}{
		{"skipCancelGuard", &skipCancelGuard, "lateRegistration"},
		{"skipFinalCheck", &skipFinalCheck, "abortWins"},
		{"checkThenActAbort", &checkThenActAbort, "abortWins"},
		{"handleOutsideLock", &handleOutsideLock, "killOnce"},
		{"releaseTwice", &releaseTwice, "releaseOnce"},
		{"releaseUnproven", &releaseUnproven, "unproven"},
		{"detachWithoutCAS", &detachWithoutCAS, "handOver"},
		{"gateAddAfterDrain", &gateAddAfterDrain, "gate"},
		{"skipReleaseOnFinal", &skipReleaseOnFinal, "provenLater"},
	} {
		t.Run(m.name, func(t *testing.T) {
			*m.guard = true
			defer func() { *m.guard = false }()
			if scenarios[m.scenario]() == nil {
				t.Errorf("scenario %q does not need this guard", m.scenario)
			}
		})
	}
}
