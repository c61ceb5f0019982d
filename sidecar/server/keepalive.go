package server

import (
	"maps"
	"net/http"
	"sync"
	"time"
)

const (
	streamType   = "text/event-stream"
	writeTimeout = 30 * time.Second // for what one write has for its client: a connection that takes nothing ends
)

// keepAlive is the response of one request. The SDK sends nothing before the first message, and clients give up on an
// answer without headers (nodejs/undici#1937: 300 s) or on an idle stream; so comments are sent meanwhile.
type keepAlive struct {
	header http.Header // the SDK's: it changes them whenever it likes

	mu sync.Mutex
	// guarded by mu
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool // the headers are sent
}

// serveAlive lets next answer. With stream, which says that the answer will be one, comments keep it alive; not from the
// beginning: that leaves the SDK time to refuse. r is not what net/http holds: the SDK assigns its body, which net/http
// reads as the headers are written.
func (s *Server) serveAlive(next http.Handler, w http.ResponseWriter, r *http.Request, stream bool) {
	k := &keepAlive{header: http.Header{}, w: w, control: http.NewResponseController(w)}
	stop := make(chan struct{})
	var comments sync.WaitGroup
	if stream {
		comments.Go(func() { k.comment(stop, s.o.Limits.KeepAlive) })
	}
	next.ServeHTTP(k, r)
	close(stop)
	comments.Wait()
	if len(k.header) > 0 { // of an answer without a body
		k.WriteHeader(http.StatusOK)
	}
}

// Header returns headers that no other goroutine touches: they are copied when they are sent.
func (k *keepAlive) Header() http.Header { return k.header }

// WriteHeader sends the SDK's headers, unless a comment came first.
func (k *keepAlive) WriteHeader(status int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin(k.header, status)
}

// Write sends what the SDK writes.
func (k *keepAlive) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin(k.header, http.StatusOK)
	return k.w.Write(b)
}

// FlushError implements what http.ResponseController looks for.
func (k *keepAlive) FlushError() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.control.Flush()
}

// comment sends comments until stop: one after a pause, and then one every three.
func (k *keepAlive) comment(stop <-chan struct{}, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(3 * pause)
		case <-stop:
			return
		}
		k.mu.Lock()
		k.begin(http.Header{"Content-Type": {streamType}}, http.StatusOK)
		_, _ = k.w.Write([]byte(": keep-alive\n\n")) // a client that is gone ends the request
		_ = k.control.Flush()                        // as above
		k.mu.Unlock()
	}
}

// begin gives the client its time for the next write. Before the first one it sends the headers.
func (k *keepAlive) begin(header http.Header, status int) {
	_ = k.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines is no network's
	if k.begun {
		return
	}
	k.begun = true
	to := k.w.Header()
	maps.Copy(to, header)
	if to.Get("Content-Type") == streamType { // as it comes, through every proxy
		to.Set("Cache-Control", "no-cache, no-transform")
		to.Set("X-Accel-Buffering", "no")
	}
	k.w.WriteHeader(status)
}
