package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

func newServe() *cobra.Command {
	var stdio bool
	c := &cobra.Command{
		Use:   "serve [--listen HOST:PORT] [--metrics-listen HOST:PORT] [--auth token|local] [--tls-cert FILE --tls-key FILE] | --stdio",
		Short: "Serve MCP clients",
		Long: `Recovers the workspace, then serves MCP over streamable HTTP at /mcp, or with --stdio one client on standard input and
output. Metrics, /livez, /startupz and /readyz are on a listener of their own. Logs are JSON lines on stderr.

Clients send a token as 'Authorization: Bearer TOKEN': one of the configured list, else the one of <state-dir>/token, which
is made at the first start. With --auth local whoever reaches the port may call: for one's own machine, not in a pod, and
without allow_script. To listen on other than loopback takes TLS, tokens and allowed_hosts.

SIGTERM, SIGINT: new calls are refused, running jobs may go on for drain_timeout, then they are cancelled, proven dead
and rolled back. With --stdio the end of input cancels everything at once.`,
		Example: "  eda-sidecar serve --workspace . --auth local",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().StringVar(&flags.Listen, "listen", "", "address and port of MCP (default 127.0.0.1:8080)")
	c.Flags().StringVar(&flags.MetricsListen, "metrics-listen", "", "address and port of metrics and probes (default 127.0.0.1:9090, with --stdio none)")
	c.Flags().StringVar(&flags.Auth, "auth", "", "token, or local: no token (default token)")
	c.Flags().StringVar(&flags.TLSCert, "tls-cert", "", "certificate chain of MCP, PEM")
	c.Flags().StringVar(&flags.TLSKey, "tls-key", "", "its key, where no tool can read")
	c.Flags().BoolVar(&stdio, "stdio", false, "serve one client on standard input and output")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if stdio && flags.Listen != "" {
			return errors.New("--stdio serves one client and does not listen: leave out --listen")
		}
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		o := sidecar.ServeOptions{Version: version, Revision: revision(), Log: slog.New(slog.NewJSONHandler(c.ErrOrStderr(), nil))}
		if stdio {
			if o.In, o.Out, err = privateStdio(); err != nil {
				return &job.Error{Code: job.Internal, Op: "take standard input and output", Err: err}
			}
		} else {
			cfg.MetricsListen = cmp.Or(cfg.MetricsListen, "127.0.0.1:9090")
		}
		return sidecar.Serve(c.Context(), cfg, o)
	}
	return c
}

// privateStdio takes the client's two streams for us alone: no tool inherits them, and what anybody prints goes to stderr.
func privateStdio() (in io.Reader, out io.Writer, err error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = null.Close() }() // duplicated, or of no use
	var private [2]int
	for fd, instead := range [2]int{int(null.Fd()), 2} {
		if private[fd], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			err = unix.Dup3(instead, fd, 0)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return os.NewFile(uintptr(private[0]), "stdin"), os.NewFile(uintptr(private[1]), "stdout"), nil
}

func newDrain() *cobra.Command {
	var wait, asJSON bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "drain [--wait] [--timeout D]",
		Short: "Let the server of a workspace end its jobs and take no new ones",
		Long: `Tells the server of the workspace to refuse new calls and to end queued ones; running jobs go on. Only a restart of the
server ends it. Exit status 0: no job is left; 75: some still run; 70: processes of some could not be proven dead.`,
		Example: "  eda-sidecar drain --wait --timeout 2m",
		Args:    cobra.NoArgs,
	}
	flags := workspaceFlags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait until no job is left")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	c.Flags().BoolVar(&asJSON, "json", false, "print the server's state as JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if timeout <= 0 {
			return fmt.Errorf("--timeout %v: want a duration above zero", timeout)
		}
		cfg, err := load(flags)
		if err != nil {
			return err
		}
		state, err := sidecar.Ask(c.Context(), cfg, true)
		if err == nil && wait {
			state, err = waitDrained(c.Context(), cfg, timeout)
		}
		if err != nil {
			return err
		}
		if asJSON {
			err = printJSON(c.OutOrStdout(), state)
		} else {
			_, err = fmt.Fprintf(c.OutOrStdout(), "draining: %d jobs running, %d queued, %d not proven dead\n", state.Running, state.Queued, state.Unproven)
		}
		switch {
		case err != nil:
			return err
		case state.Unproven > 0:
			return &silentError{exitInternal}
		case !state.Drained():
			return &silentError{exitRetry}
		}
		return nil
	}
	return c
}

// waitDrained asks until no job is left or the time is over, and returns the last answer.
func waitDrained(ctx context.Context, cfg sidecar.Config, timeout time.Duration) (state sidecar.Control, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		next, err := sidecar.Ask(ctx, cfg, false)
		switch {
		case ctx.Err() != nil:
			return state, nil
		case err != nil || next.Drained():
			return next, err
		}
		state = next
		select {
		case <-tick.C:
		case <-ctx.Done():
			return state, nil
		}
	}
}
