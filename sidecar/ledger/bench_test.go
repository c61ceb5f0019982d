package ledger

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/audit"
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
	var floor, product time.Duration
	n := int64(0)
	for b.Loop() {
		job := fmt.Sprintf("%012d", n)
		l.publish(job)
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
		floor += time.Since(began)
		began = time.Now()
		l.want("durable", nil)(l.commit(job, n))
		product += time.Since(began)
		n++
	}
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(product.Microseconds())/float64(n), "us/commit")
	b.ReportMetric(float64(product)/float64(floor), "x-floor")
}

// BenchmarkSessions is the ledger's part of jobs of k sessions at once: begin, publishing, commit.
func BenchmarkSessions(b *testing.B) {
	for _, k := range []int{1, 8} {
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			var commits atomic.Int64
			l := start(b, Options{Dir: b.TempDir(), Fault: func(p string) error {
				if p == "after COMMIT" {
					commits.Add(1)
				}
				return nil
			}})
			before := commits.Load()
			var jobs sync.WaitGroup
			began := time.Now()
			for s := range k {
				jobs.Go(func() {
					for i := range b.N {
						job := fmt.Sprintf("%d-%08d", s, i)
						e := func(k audit.Kind) audit.Event { x := event(job, k); x.Session = fmt.Sprint(s); return x }
						l.want("durable", nil)(l.Begin(journal(job), e(audit.Allow)))
						l.want("durable", nil)(l.Publishing(journal(job), e(audit.Start)))
						l.want("durable", nil)(l.Commit(job, Session{ID: fmt.Sprint(s), Owner: "me", Name: fmt.Sprint(s), Generation: int64(i)}, e(audit.Commit)))
					}
				})
			}
			jobs.Wait()
			b.ReportMetric(float64(k*b.N)/time.Since(began).Seconds(), "jobs/s")
			b.ReportMetric(float64(3*k*b.N)/float64(commits.Load()-before), "ops/COMMIT")
		})
	}
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
