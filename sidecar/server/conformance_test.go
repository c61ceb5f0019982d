package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/eda-sidecar/eda-sidecar/adapters"
)

// What the conformance suite wants the tools and resources of its names to answer.
const (
	plainText = "This is a simple text response for testing."
	bytesOf   = "\x89PNG\r\n\x1a\n" // the suite looks at the MIME type and the encoding alone
	dialect   = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
		"$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
		"properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}, "contactMethod": {"type": "string", "enum": ["phone", "email"]},
			"phone": {"type": "string"}, "email": {"type": "string"}},
		"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
		"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
		"then": {"required": ["phone"]}, "else": {"required": ["email"]}, "additionalProperties": false}`
	mirrored = `{"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "level": {"type": "integer"}}}`
)

// conformance is a server of the SDK with those tools and resources of the conformance suite that a server like this one can have.
func conformance() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "conformance", Version: "1"}, &mcp.ServerOptions{
		Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{}}, SetCacheable: cacheable,
	})
	s.AddReceivingMiddleware(noPrompts)
	text, image := &mcp.TextContent{Text: plainText}, &mcp.ImageContent{Data: []byte(bytesOf), MIMEType: "image/png"}
	embedded := &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://embedded-resource", MIMEType: "text/plain", Text: plainText}}
	for name, content := range map[string][]mcp.Content{
		"test_simple_text":            {text},
		"test_image_content":          {image},
		"test_audio_content":          {&mcp.AudioContent{Data: []byte(bytesOf), MIMEType: "audio/wav"}},
		"test_embedded_resource":      {embedded},
		"test_multiple_content_types": {text, image, embedded},
		"test_error_handling":         {text},
		"test_tool_with_progress":     {text},
		"json_schema_2020_12_tool":    {text},
		"test_x_mcp_header":           {text},
	} {
		schema := map[string]string{"json_schema_2020_12_tool": dialect, "test_x_mcp_header": mirrored}[name]
		if schema == "" {
			schema = `{"type": "object"}`
		}
		s.AddTool(&mcp.Tool{Name: name, Description: name, InputSchema: json.RawMessage(schema)}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			if token := req.Params.GetProgressToken(); name == "test_tool_with_progress" && token != nil {
				for _, done := range []float64{0, 50, 100} {
					if err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: done, Total: 100}); err != nil {
						return nil, err
					}
				}
			}
			return &mcp.CallToolResult{Content: content, IsError: name == "test_error_handling"}, nil
		})
	}
	read := func(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		c := &mcp.ResourceContents{URI: req.Params.URI, Text: plainText}
		if id, ok := strings.CutPrefix(c.URI, "test://template/"); ok {
			c.Text = fmt.Sprintf(`{"id": %q}`, strings.TrimSuffix(id, "/data"))
		} else if c.URI == "test://static-binary" {
			c.Text, c.Blob = "", []byte(bytesOf)
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
	}
	s.AddResource(&mcp.Resource{URI: "test://static-text", Name: "text", MIMEType: "text/plain"}, read)
	s.AddResource(&mcp.Resource{URI: "test://static-binary", Name: "binary", MIMEType: "image/png"}, read)
	s.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "test://template/{id}/data", Name: "template", MIMEType: "application/json"}, read)
	return s
}

// TestConformanceServer: another server of the SDK behind our chain answers in both eras as it would without. The end-to-end
// leg sets CONFORMANCE_LISTEN and lets the suite of the protocol's authors at it, until standard input ends.
func TestConformanceServer(t *testing.T) {
	listen := os.Getenv("CONFORMANCE_LISTEN")
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Catalog: new(adapters.Catalog), Listen: listener.Addr().String(), Auth: Local(Read)})
	if err != nil {
		t.Fatal(err)
	}
	s.mcp = conformance()
	web := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- web.Serve(listener) }()
	defer func() {
		_ = web.Close() // and with it the connections of clients
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	url := "http://" + listener.Addr().String() + path
	for _, version := range []string{"2025-11-25", eraA} {
		client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
		session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, DisableStandaloneSSE: true}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "test_multiple_content_types"})
		if err != nil || len(r.Content) != 3 || r.IsError {
			t.Errorf("%s: got %v, %v", version, r, err)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	}
	if os.Getenv("CONFORMANCE_LISTEN") != "" {
		fmt.Println(url)
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
			t.Error(err)
		}
	}
}
