// Package sample measures modes of one benchmark side by side, and reports them as its metrics.
package sample

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Modes are durations by mode. The modes of a benchmark take turns in one loop: what else the machine does meets them all.
type Modes map[string][]time.Duration

// Time runs f and adds what it took to mode.
func (m Modes) Time(mode string, f func()) {
	began := time.Now()
	f()
	m[mode] = append(m[mode], time.Since(began))
}

// Report makes the metrics MODE-p10-us, MODE-p50-us and MODE-p99-us of each mode, in microseconds.
func (m Modes) Report(b *testing.B) {
	for mode, all := range m {
		for _, p := range []int{10, 50, 99} {
			b.ReportMetric(float64(Percentile(all, p).Nanoseconds())/1e3, fmt.Sprintf("%s-p%d-us", mode, p))
		}
	}
}

// Percentile returns the smallest of all, at least one, below or at which p percent of them lie.
func Percentile(all []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[max(0, (len(sorted)*p+99)/100-1)]
}
