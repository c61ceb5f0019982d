package server

import (
	"maps"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// failuresPerMinute is how many requests without a valid token one network is told so: beyond, it is told to wait.
const failuresPerMinute = 10

// maxBuckets is of how many principals or addresses the rate is known at once.
const maxBuckets = 1024

// buckets bound how often something happens, by name: a token bucket each.
type buckets struct {
	rate  rate.Limit // fixed at creation
	burst int        // fixed at creation

	mu sync.Mutex
	by map[string]*rate.Limiter // guarded by mu
}

func newBuckets(r rate.Limit, burst int) *buckets {
	return &buckets{rate: r, burst: burst, by: map[string]*rate.Limiter{}}
}

// take takes from a name's bucket, and returns how long to wait if it is empty. Names that are too many share one.
func (b *buckets) take(name string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by[name] == nil && len(b.by) >= maxBuckets {
		maps.DeleteFunc(b.by, func(_ string, l *rate.Limiter) bool { return l.Tokens() >= float64(b.burst) }) // as good as new
		if len(b.by) >= maxBuckets {
			name = ""
		}
	}
	l := b.by[name]
	if l == nil {
		l = rate.NewLimiter(b.rate, b.burst)
		b.by[name] = l
	}
	r := l.Reserve()
	wait := r.Delay()
	if wait > 0 {
		r.Cancel()
	}
	return wait
}

// tooMany refuses a request that comes too soon.
func tooMany(w http.ResponseWriter, wait time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}

// network is the client's address, or, as one of IPv6 has as many as it likes, its /64.
func network(r *http.Request) string {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return "" // of a listener that is no network's
	}
	addr := from.Addr().Unmap()
	if addr.Is4() {
		return addr.String()
	}
	p, err := addr.WithZone("").Prefix(64)
	if err != nil {
		return addr.String() // cannot happen: it is of IPv6
	}
	return p.String()
}
