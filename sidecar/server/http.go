package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/server/codec"
)

const (
	path         = "/mcp"
	maxRequestID = 128                          // bytes of a request id that the audit trail keeps
	requestID    = "Eda-Sidecar-Request-Id"     // header by which a handler learns the id of its request, which the SDK keeps
	retrySeconds = "5"                          // after a 503
	wwwAuth      = `Bearer realm="eda-sidecar"` // RFC 6750 section 3
)

// serveHTTP is the chain in front of the SDK: cheap checks first, and nothing of a body before its sender is known.
func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines is no network's
	// Host, then Origin: a page that rebinds its name to loopback has both equal, and neither is ours
	if !s.hosts[plainHost(r.Host)] {
		http.Error(w, "host is not allowed", http.StatusForbidden)
		return
	}
	for _, origin := range r.Header.Values("Origin") {
		if !s.origins[plainHost(origin)] {
			http.Error(w, "origin is not allowed", http.StatusForbidden)
			return
		}
	}
	if r.URL.Path != path {
		http.NotFound(w, r)
		return
	}
	who, err := Principal{}, errNoToken
	if s.o.Auth != nil {
		who, err = s.o.Auth(r.Header)
	}
	if err != nil {
		if now := time.Now().Unix(); s.noticed.Swap(now) != now { // at most one a second: anybody can cause them
			s.o.Notify(Notice{Message: "request without a valid token", Address: r.RemoteAddr, Detail: err.Error()})
		}
		if wait := s.failures.take(network(r)); wait > 0 {
			tooMany(w, wait)
			return
		}
		w.Header().Set("WWW-Authenticate", wwwAuth)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if wait := s.requests.take(who.Name); wait > 0 {
		tooMany(w, wait)
		return
	}
	leave, ok := s.calls.enter(who.Name)
	if !ok {
		unavailable(w, "too many open calls")
		return
	}
	defer leave()
	r = r.WithContext(context.WithValue(r.Context(), whoKey{}, who))
	r.Header = r.Header.Clone()
	r.Header.Set("Authorization", "Bearer -") // the SDK wants one, and needs none
	stream := r.Method == http.MethodGet
	if r.Method == http.MethodPost {
		body, status, refusal := s.body(w, r)
		if refusal != nil {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Connection", "close") // what follows on it may be the rest of a body
			w.WriteHeader(status)
			_, _ = w.Write(refusal) // the client may be gone
			return
		}
		var m message
		_ = json.Unmarshal(body, &m) // a message of other types is the SDK's to refuse
		if s.draining.Load() && m.Method == "tools/call" && !s.afterDrain(m.Params.Name) {
			unavailable(w, "draining")
			return
		}
		stream = m.Method == "tools/call"
		r.Header.Set(requestID, m.id())
		r.Body = io.NopCloser(bytes.NewReader(body)) // whole: the SDK never waits for a client
	}
	s.serveAlive(s.router, w, r, stream)
}

// afterDrain reports whether a tool is answered by a server that drains: those that show what was done, and job_cancel.
func (s *Server) afterDrain(name string) bool {
	return name == jobCancel || slices.ContainsFunc(s.tools, func(t *tool) bool { return t.name == name && t.eda == nil && t.hints.readOnly })
}

// body reads all of a request's body, within its bound and its time, and checks that it means the same to every reader.
// A refusal is a JSON-RPC error.
func (s *Server) body(w http.ResponseWriter, r *http.Request) (body []byte, status int, refusal []byte) {
	large := codec.TooLarge{Size: r.ContentLength, Bounds: catalog}
	if r.Header.Get("Mcp-Method") == "tools/call" || r.Header.Get(sessionHeader) != "" {
		large.Bounds = calls // the SDK holds both headers against what it knows
	}
	if large.Size > large.Bounds.In {
		return nil, http.StatusRequestEntityTooLarge, large.Answer()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.o.Limits.BodyTimeout)) // a writer without deadlines is no network's
	body, err := io.ReadAll(io.LimitReader(r.Body, large.Bounds.In+1))
	_ = control.SetReadDeadline(time.Time{}) // as above
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, http.StatusRequestTimeout, (&codec.Malformed{Err: errSlow}).Answer()
	case err != nil:
		return nil, http.StatusBadRequest, (&codec.Malformed{Err: io.ErrUnexpectedEOF}).Answer()
	case int64(len(body)) > large.Bounds.In:
		large.Size = int64(len(body))
		return nil, http.StatusRequestEntityTooLarge, large.Answer()
	}
	if malformed := codec.Check(body); malformed != nil {
		return nil, http.StatusBadRequest, malformed.Answer()
	}
	return body, 0, nil
}

// errSlow is what is wrong with a body that does not come.
var errSlow = errors.New("it did not come in time")

// Bounds of one message: larger for who may call a tool by now.
var (
	catalog = codec.Bounds{Phase: codec.Catalog, In: 64 << 10, Out: 512 << 10}
	calls   = codec.Bounds{Phase: codec.Tool, In: 1 << 20, Out: 256 << 10}
)

// message is what the chain wants to know of a JSON-RPC message.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Name string `json:"name"`
	} `json:"params"`
}

// id is the request's id as the audit trail has it: a string without its quotes.
func (m message) id() string {
	var text string
	if json.Unmarshal(m.ID, &text) != nil {
		text = string(m.ID)
	}
	return cutText(strings.Map(printable, text), maxRequestID)
}

func unavailable(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", retrySeconds)
	http.Error(w, why, http.StatusServiceUnavailable)
}

// gate counts the calls that are open.
type gate struct {
	all, each int // fixed at creation

	mu   sync.Mutex
	sum  int            // guarded by mu
	open map[string]int // guarded by mu; by principal
}

func (g *gate) enter(name string) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.sum >= g.all || g.open[name] >= g.each {
		return nil, false
	}
	g.sum++
	g.open[name]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sum--
		if g.open[name]--; g.open[name] == 0 {
			delete(g.open, name)
		}
	}, true
}

// allowed are the values of Host and Origin that are answered, as plainHost has them.
func (o Options) allowed() (hosts, origins map[string]bool) {
	hosts, origins = map[string]bool{}, map[string]bool{}
	names := o.AllowedHosts
	if names == nil {
		own, port, _ := net.SplitHostPort(o.Listen) // without a listener no host is allowed
		for _, name := range []string{"localhost", "127.0.0.1", "::1", own} {
			names = append(names, net.JoinHostPort(name, port))
		}
	}
	for _, name := range names {
		name = plainHost(name)
		hosts[name] = true
		u := url.URL{Host: name}
		if ip := net.ParseIP(u.Hostname()); o.AllowedOrigins == nil && (u.Hostname() == "localhost" || ip.IsLoopback()) {
			origins["http://"+name], origins["https://"+name] = true, true
		}
	}
	for _, origin := range o.AllowedOrigins {
		origins[plainHost(origin)] = true
	}
	return hosts, origins
}

// plainHost is a host or an origin in lower case and without a default port, which clients leave out.
func plainHost(text string) string {
	text = strings.ToLower(text)
	return strings.TrimSuffix(strings.TrimSuffix(text, ":80"), ":443")
}
