from .outliers import Outliers, find_outliers, outlier_mask
from .report.diagnosis_page import write_report
from .verdict import Finding

__all__ = ["Finding", "Outliers", "find_outliers", "outlier_mask", "write_report"]
