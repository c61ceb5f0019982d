package a

import (
	"context"
	"math"
	"time"
)

const (
	five             = 5
	zero             = 0
	grace            = 5 * time.Second
	limit            = time.Minute / 2
	typed time.Duration = 7 // want `untyped constant 7 as a time.Duration`
)

type options struct{ Wait time.Duration }

func take(time.Duration) {}

func bad(ctx context.Context, d time.Duration) time.Duration {
	_, cancel := context.WithTimeout(ctx, 5) // want `untyped constant 5 as a time.Duration`
	cancel()
	take(five)                    // want `untyped constant 5 as a time.Duration`
	take(math.MaxInt64)           // want `untyped constant 9223372036854775807 as a time.Duration`
	take(2 * 3)                   // want `untyped constant 6 as a time.Duration`
	take(d + 1)                   // want `untyped constant 1 as a time.Duration`
	take(-(1e9))                  // want `untyped constant -1000000000 as a time.Duration`
	_ = options{Wait: 10}         // want `untyped constant 10 as a time.Duration`
	_ = d > 100                   // want `untyped constant 100 as a time.Duration`
	_ = []time.Duration{1, 0}     // want `untyped constant 1 as a time.Duration`
	take(5*time.Second + 1)       // want `untyped constant 1 as a time.Duration`
	d = 3                         // want `untyped constant 3 as a time.Duration`
	return 30                     // want `untyped constant 30 as a time.Duration`
}

func good(ctx context.Context, d time.Duration, n int, o *options, ds []time.Duration) time.Duration {
	_, cancel := context.WithTimeout(ctx, 5*time.Second)
	cancel()
	take(0)
	println("text", 'c', true, 1.5)
	take(zero)
	take(five * time.Second)
	take(2 * 3 * time.Second)
	take(time.Second * (1 + 2))
	take(d / 2)
	take(2 * o.Wait)
	take(ds[1] / 3)
	take(time.Since(time.Time{}) / 2)
	take(time.Duration(math.MaxInt64))
	take(time.Duration(n) * time.Millisecond)
	take(time.Second << 2)
	take(grace + limit + typed)
	if d > 0 && n > 5 {
		return -time.Second
	}
	return d
}
