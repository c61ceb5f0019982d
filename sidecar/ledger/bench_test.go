package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
	"github.com/eda-sidecar/eda-sidecar/test/bench/sample"
)

// BenchmarkCommit is one commit transaction, alternating with the floor: append 512 bytes to a file and sync it.
func BenchmarkCommit(b *testing.B) {
	l := start(b, Options{Dir: b.TempDir()})
	for i := range 300 { // the log is recycled once
		l.want("durable", nil)(l.SetAgent(fmt.Sprint(i)))
	}
	f, err := os.Create(filepath.Join(b.TempDir(), "floor"))
	if err != nil {
		b.Fatal(err)
	}
	block := make([]byte, 512)
	m := sample.Modes{}
	for n := int64(0); b.Loop(); n++ {
		job := fmt.Sprintf("%012d", n)
		l.publish(job)
		m.Time("append", func() {
			if _, err := f.Write(block); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
		})
		m.Time("commit", func() { l.want("durable", nil)(l.commit(job, n)) })
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	m.Report(b)
}

// BenchmarkVerify reads and checks 10,000 events.
func BenchmarkVerify(b *testing.B) {
	const n = 10_000
	l := start(b, Options{})
	var last *Ticket
	for i := 0; i < n; i += 3 {
		job := fmt.Sprintf("%08d", i)
		allow := event(job, audit.Allow)
		allow.Data = map[string]any{"args_sha256": fmt.Sprintf("%064d", i)}
		t, err := l.RecordLast(allow, event(job, audit.Start), event(job, audit.Finish))
		if err != nil {
			b.Fatal(err)
		}
		if last = t; i%3000 == 0 {
			l.queue.Flush()
			l.wait(t, nil)
		}
	}
	l.queue.Flush()
	l.want("durable", nil)(last, nil)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	b.ResetTimer()
	for b.Loop() {
		l.verified()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.N*n)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric((float64(after.HeapInuse)-float64(before.HeapInuse))/1024, "KiB-kept")
}
