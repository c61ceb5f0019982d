//go:build edamodel

package codec

import "testing"

// TestMutants takes each guard away and wants its scenario to fail.
func TestMutants(t *testing.T) {
	for _, m := range []struct {
		name     string
		guard    *bool
		scenario string
	}{
		{"skipBoundPublication", &skipBoundPublication, "blocked"},
		{"publishBoundLate", &publishBoundLate, "handOff"},
		{"loadBeforeFirstByte", &loadBeforeFirstByte, "blocked"},
		{"twoStores", &twoStores, "together"},
	} {
		t.Run(m.name, func(t *testing.T) {
			*m.guard = true
			defer func() { *m.guard = false }()
			err := scenarios[m.scenario]()
			if err == nil {
				t.Fatalf("scenario %q does not need this guard", m.scenario)
			}
			t.Log(err)
		})
	}
}
