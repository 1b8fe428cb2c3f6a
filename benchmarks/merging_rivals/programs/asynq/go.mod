module rival

go 1.24

require (
	github.com/google/uuid v1.6.0
	github.com/hibiken/asynq v0.26.0
)
