package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/eda-sidecar/eda-sidecar/cgroup"
)

func main() {
	cgroup.Child() // this binary is also the probe and the shim of its own groups; then it does not return
	if err := cgroup.SecureProcess(); err != nil {
		fmt.Fprintln(os.Stderr, "eda-sidecar: cannot start:", err)
		os.Exit(exitInternal)
	}
	signals := slices.DeleteFunc([]os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}, signal.Ignored) // nohup(1)
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	command, err := newRoot().ExecuteContextC(ctx)
	stop()
	if err != nil {
		printError(command, err)
	}
	os.Exit(exitOfError(err))
}
