package sample

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred {
		hundred[i] = time.Duration(100 - i)
	}
	for _, tt := range []struct {
		all  []time.Duration
		p    int
		want time.Duration
	}{
		{hundred, 10, 10 * time.Nanosecond},
		{hundred, 50, 50 * time.Nanosecond},
		{hundred, 99, 99 * time.Nanosecond},
		{hundred[:1], 10, 100 * time.Nanosecond},
		{hundred[:3], 50, 99 * time.Nanosecond},
		{hundred[:3], 99, 100 * time.Nanosecond},
	} {
		if got := Percentile(tt.all, tt.p); got != tt.want {
			t.Errorf("p%d of %d: got %d, want %d", tt.p, len(tt.all), got, tt.want)
		}
	}
}

func TestReport(t *testing.T) {
	r := testing.Benchmark(func(b *testing.B) {
		m := Modes{}
		m.Time("a", func() {})
		m["b"] = []time.Duration{time.Millisecond}
		m.Report(b)
	})
	if r.Extra["b-p50-us"] != 1000 || r.Extra["b-p99-us"] != 1000 || len(r.Extra) != 6 {
		t.Errorf("got %v", r.Extra)
	}
}
