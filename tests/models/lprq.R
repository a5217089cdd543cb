# Local linear quantiles of R's quantreg, as a table: Rscript lprq.R attnkernel/data/csv > lprq.csv
suppressMessages(library(quantreg))
options(digits = 15)
mcycle <- read.csv(file.path(commandArgs(trailingOnly = TRUE)[1], "mcycle.csv"))
cat("level,x,fit,slope\n")
for (tau in c(0.1, 0.5, 0.9)) {
  found <- suppressWarnings(lprq(mcycle$times, mcycle$accel, h = 2.5, m = 25, tau = tau))
  cat(paste(tau, found$xx, found$fv, found$dv, sep = ","), sep = "\n")
}
