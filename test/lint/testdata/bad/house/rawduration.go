package house

import (
	"context"
	"time"
)

func rawduration(ctx context.Context, f func(context.Context, time.Duration)) { f(ctx, 5) }
