//go:build edamodel

package lock

import "testing"

// TestMutants takes each guard away and wants its scenario to fail.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name     string
		guard    *bool
		scenario string
	}{
		{"grantOverlap", &grantOverlap, "crossed"},
		{"skipDestroyedRecheck", &skipDestroyedRecheck, "tooLate"},
		{"loseHandOn", &loseHandOn, "handOn"},
		{"failOnlyFirstWaiter", &failOnlyFirstWaiter, "destroy"},
		{"overtake", &overtake, "fair"},
		{"slotLeak", &slotLeak, "giveUp"},
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
