package house

import "time"

func durationcheck(d time.Duration) time.Duration { return d * time.Second }
