package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/eda-sidecar/eda-sidecar/sidecar"
	"github.com/eda-sidecar/eda-sidecar/sidecar/job"
)

// maxAnswer bounds what one answer of a server may take, bytes: progress of 45 s and a result are far below.
const maxAnswer = 1 << 20

// dialing is where a client finds its server.
type dialing struct {
	server, tokenFile string
	workspace         *sidecar.Flags
}

// client is an MCP client: of a server on the network, or of one in this process, on an engine of its own.
type client struct {
	*mcp.ClientSession
	close func() error // idempotent; of an engine of its own it ends all jobs first
}

// connect finds the server, or makes one in this process.
func (d dialing) connect(c *cobra.Command, progress func(string)) (*client, error) {
	options := &mcp.ClientOptions{}
	if progress != nil {
		options.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress(r.Params.Message) }
	}
	ctx := context.WithoutCancel(c.Context()) // a cancelled call is answered, too
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	transport, end, err := d.transport(c)
	if err != nil {
		return nil, err
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "eda-sidecar call", Version: version}, options).Connect(ctx, transport, nil)
	if err != nil {
		return nil, errors.Join(unreachable(d.server, err), end())
	}
	return &client{session, func() error { return errors.Join(session.Close(), end()) }}, nil
}

func (d dialing) transport(c *cobra.Command) (mcp.Transport, func() error, error) {
	if d.server == "" {
		cfg, err := load(d.workspace)
		if err != nil {
			return nil, nil, err
		}
		s, err := sidecar.Embed(c.Context(), cfg, version)
		if err != nil {
			return nil, nil, err
		}
		printRecovered(c, s.Recovered)
		return s.Transport, s.Close, nil
	}
	endpoint, err := url.Parse(d.server)
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" {
		return nil, nil, fmt.Errorf("--server %q: want a URL, such as http://127.0.0.1:8080", d.server)
	}
	if endpoint.Path == "" || endpoint.Path == "/" {
		endpoint.Path = "/mcp"
	}
	token, err := d.token()
	if err != nil {
		return nil, nil, err
	}
	return &mcp.StreamableClientTransport{
		Endpoint: endpoint.String(), HTTPClient: &http.Client{Transport: bearer(token)}, MaxRetries: -1, DisableStandaloneSSE: true,
	}, func() error { return nil }, nil
}

// token is what the server wants to see: from the environment, a file, or the state directory of the workspace; empty if
// there is none. It is no flag: others could read it in the list of processes.
func (d dialing) token() (string, error) {
	if token := os.Getenv("EDA_SIDECAR_TOKEN"); token != "" {
		return token, nil
	}
	if d.tokenFile != "" {
		b, err := os.ReadFile(d.tokenFile)
		return strings.TrimSpace(string(b)), err
	}
	cfg, err := sidecar.LoadConfig(*d.workspace)
	if err != nil {
		return "", nil // no workspace here: the server may want no token
	}
	token, err := sidecar.Token(cfg, false)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	return token, err
}

// bearer sends the token with every request, and refuses answers that are too long.
type bearer string

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = &bounded{response.Body, maxAnswer}
	return response, nil
}

// bounded fails once more was read than may be.
type bounded struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return n, fmt.Errorf("the server's answer is longer than %d bytes", maxAnswer)
	}
	return n, err
}

// unreachable gives an error of the way to the server its code.
func unreachable(server string, err error) error {
	switch text := err.Error(); {
	case server == "":
		return &job.Error{Code: job.Internal, Op: "reach the server in this process", Err: err}
	case strings.Contains(text, "401") || strings.Contains(text, "Unauthorized"):
		return &job.Error{Code: job.Denied, Op: "reach " + server, Err: fmt.Errorf("%w (it wants a token: EDA_SIDECAR_TOKEN, --token-file, or --workspace of the server)", err)}
	case strings.Contains(text, "Service Unavailable"):
		return &job.Error{Code: job.ShuttingDown, Op: "reach " + server, Err: fmt.Errorf("%w (it takes no calls now)", err)}
	}
	return &job.Error{Code: job.Busy, Op: "reach " + server, Err: err, Hint: "is the server running, and is its address right? Its log says where it serves"}
}

// lost is the error of a call whose answer did not come: nobody here knows whether it was made.
func lost(tool, id string, err error) error {
	known := "'eda-sidecar call job_list' of the server, or 'eda-sidecar audit' beside it, names its job"
	if id != "" {
		known = "ask again with 'eda-sidecar call --server URL job_wait job_id=" + id + "'"
	}
	return &job.Error{Code: job.Internal, Op: "hear how " + tool + " ended", Err: err, Hint: known + ". A server that died rolls it back at its next start, unless it was committed"}
}
