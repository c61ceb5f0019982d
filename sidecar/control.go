package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/eda-sidecar/eda-sidecar/sidecar/durable"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
	"github.com/eda-sidecar/eda-sidecar/sidecar/metrics"
)

// controlSocket lies in the state directory. Who may connect to it is the owner of that directory, as both are closed to
// everybody else (unix(7)): a drain is the operator's, never an MCP client's or a tool's.
const controlSocket = "control.sock"

// Control is what a server says of itself to its operator.
type Control struct {
	PID      int             `json:"pid"`
	Draining bool            `json:"draining"` // only a restart ends it
	Running  int             `json:"running"`  // jobs
	Queued   int             `json:"queued"`   // jobs
	Unproven int             `json:"unproven"` // jobs whose processes could not be proven dead
	Checks   []metrics.Check `json:"checks"`   // of readiness
	Waiting  []Recovered     `json:"waiting"`  // quarantined jobs of earlier processes: an operator has to decide
}

// Drained reports whether no job is left after a drain.
func (c Control) Drained() bool { return c.Draining && c.Running+c.Queued == 0 }

// socketPath names the socket through the directory's descriptor: its own path may be longer than a socket's may (108 bytes).
func socketPath(dir durable.Handle) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.File().Fd(), controlSocket)
}

// listenControl makes the socket, in the place of one that an earlier process has left.
func listenControl(stateDir string) (net.Listener, error) {
	dir, err := durable.OS().OpenRoot("sidecar.control.dir", stateDir)
	if err != nil {
		return nil, fail(job.Internal, "open the state directory", err)
	}
	defer func() { _ = dir.Close() }() // opened for reading
	err = durable.OS().Unlink("sidecar.control.unlink", durable.Name{Dir: dir, Name: controlSocket})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fail(job.Internal, "remove the earlier "+controlSocket, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(dir), Net: "unix"})
	if err != nil {
		return nil, fail(job.Internal, "listen on "+controlSocket, err)
	}
	l.SetUnlinkOnClose(false) // its name leads through a descriptor that is closed by then; the next start removes it
	if err := durable.OS().Chmod("sidecar.control.chmod", durable.Name{Dir: dir, Name: controlSocket}, 0o600); err != nil {
		return nil, errors.Join(fail(job.Internal, "close "+controlSocket+" to others", err), l.Close())
	}
	return l, nil
}

// controls answers on the control socket.
func (s *service) controls() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, o *opened) {
		n := o.registry.Counts()
		_ = json.NewEncoder(w).Encode(Control{ // the client is gone
			PID: os.Getpid(), Draining: s.draining.Load(), Running: n.Running, Queued: n.Queued, Unproven: n.Unproven, Checks: s.ready(), Waiting: append([]Recovered{}, o.waiting()...),
		})
	}
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.opened.Load()) })
	mux.HandleFunc("POST /drain", func(w http.ResponseWriter, _ *http.Request) {
		o := s.opened.Load()
		s.o.Log.Info("draining", "error", "asked for on "+controlSocket)
		s.drain(o)
		answer(w, o)
	})
	return mux
}

// Ask asks the server of a workspace for its state, and with drain to drain. A *job.Error with INVALID_ARGUMENT: nobody
// serves the workspace.
func Ask(ctx context.Context, cfg Config, drain bool) (c Control, err error) {
	dir, err := durable.OS().OpenRoot("sidecar.control.dir", cfg.StateDir)
	if err != nil {
		return c, fail(job.InvalidArgument, "reach the server of "+cfg.Workspace, err)
	}
	defer func() { _ = dir.Close() }() // opened for reading
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
		},
	}}
	method, path := http.MethodGet, "status"
	if drain {
		method, path = http.MethodPost, "drain"
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://control/"+path, nil)
	if err != nil {
		return c, err
	}
	response, err := client.Do(request)
	if err != nil {
		return c, fail(job.InvalidArgument, "reach the server of "+cfg.Workspace, fmt.Errorf("%w (no server runs there)", errors.Unwrap(err)))
	}
	defer func() { _ = response.Body.Close() }() // opened for reading
	if err := json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&c); err != nil {
		return c, fail(job.Internal, "understand the server", err)
	}
	return c, nil
}
